"""PrepareMethod.EAGER: layers are replaced one by one, and the model keeps its own forward.

What one layer becomes is found as in the other ways of ``prepare``: every layer, or fused group of
layers, is one row of a graph of its own (input, layer, output), and that graph is prepared. Its
operators then take the places of the layers. What forward does between layers is not seen.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs
from qtune.capture.interface import signature_of
from qtune.capture.leaf import is_leaf
from qtune.capture.recorder import capture
from qtune.capture.structure import flatten
from qtune.errors import PrepareError
from qtune.modes import get_consistency_level
from qtune.nn.eager import EagerFacts, observe_forward
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import QATOp
from qtune.nn.qat.call_form import CallForm
from qtune.nn.qat.composite import Composite
from qtune.nn.qat.functional import FloatFunctional, is_functional
from qtune.nn.table import forget_sources
from qtune.ops.quant.stubs import QuantStub, torch_stubs
from qtune.ops.registry import find_module
from qtune.prepare.eager_graph import eager_graph
from qtune.prepare.eager_layer import EagerComposite
from qtune.prepare.fuse import GROUP
from qtune.prepare.fuse_modules import fused_layers
from qtune.prepare.hybrid import Hybrid
from qtune.prepare.symbolic import find_example
from qtune.qconfig.plan import Resolution
from qtune.qconfig.setter import find_qconfig

_SIZES = (8, 16, 32, 64, 128, 224, 256, 512)
"""Small ones first: they only tell ranks and channels, and every layer runs once."""

_log = logging.getLogger(__name__)

_ENDS = "_qtune_ends"

Prepare = Callable[[GraphModel], PreparedModel]


@dataclass(frozen=True, slots=True)
class Row:
    """Layers that run one after the other: their paths, and how many inputs the first takes."""

    paths: tuple[str, ...]
    layers: tuple[nn.Module, ...]
    count: int

    def run(self, modules: Sequence[nn.Module], values: Iterator[Any]) -> Any:
        """Call ``modules`` (the layers, or what stands for them) on the next inputs."""
        result: Any = None
        for place, module in enumerate(modules):
            if is_functional(module):
                first = next(values) if place == 0 else result
                result = module.add(first, next(values))  # type: ignore[operator]
            elif place == 0:
                result = module(*itertools.islice(values, self.count))
            else:
                result = module(result)
        return result

    @property
    def inputs(self) -> int:
        """Inputs of the whole row."""
        return self.count + sum(is_functional(layer) for layer in self.layers[1:])


def prepare_eager(model: nn.Module, prepare: Prepare) -> nn.Module:
    """Replace the layers of ``model`` in place and return it.

    ``prepare``: the steps after capture. Raises ``PrepareError`` where nothing can be replaced.
    """
    _warn_of_own_forwards(model)
    rows = list(_rows(model))
    if not rows:
        raise PrepareError(
            f"prepare: {type(model).__name__} has no layer to replace in eager mode: every known "
            "layer has qconfig = None, or the model is a single layer (put it into a "
            "torch.nn.Sequential)"
        )
    _warn_without_stub(model)
    inputs = [_example(row) for row in rows]
    graph = capture(_Rows(model, rows), Inputs(*itertools.chain(*inputs)))
    prepared = prepare(graph)
    for row in rows:
        for path, layer in zip(row.paths, row.layers, strict=True):
            _put(model, path, layer, prepared.get_submodule(path))
    _note_groups(model, prepared)
    resolution = _of_layers(prepared.resolution, model)
    facts = EagerFacts(prepared.march, resolution, prepared.qat_mode, eager_graph)
    for module in model.modules():
        if not isinstance(module, QATOp):
            facts.note(module)
    observe_forward(model)
    return model


def _warn_of_own_forwards(model: nn.Module) -> None:
    """A subclass of a layer with a forward of its own is not that layer, so it stays as it is."""
    names = [
        f"{path} ({type(module).__name__})"
        for path, module in model.named_modules()
        if find_module(type(module)) is not None
        and not is_leaf(module)
        and find_qconfig(model, path)[0] is not None
    ]
    if names:
        _log.warning(
            "prepare: stay float in eager mode, since they are layers with a forward of their own: "
            "%s. Call the layer as a submodule, or prepare the model with a graph",
            ", ".join(names),
        )


def _warn_without_stub(model: nn.Module) -> None:
    """Nothing else would say so: a layer on float data computes in float, also behind export."""
    stubs = (QuantStub, *torch_stubs()[0])
    if not any(isinstance(module, stubs) for module in model.modules()):
        _log.warning(
            "prepare: %s has no QuantStub: in eager mode its inputs then stay float, and the "
            "layers that take them run on the CPU. Put a qtune.quantization.QuantStub on each "
            "input, or prepare the model with a graph, which inserts the stubs",
            type(model).__name__,
        )


def _of_layers(resolution: Resolution | None, model: nn.Module) -> Resolution | None:
    """The decisions about the layers, without those about the ends of the rows."""
    if resolution is None:
        return None
    names = {module.name for module in model.modules() if isinstance(module, QATOp)}
    plans = {name: plan for name, plan in resolution.plans.items() if name in names}
    lines = tuple(line for line in resolution.explanation if line.name in names)
    return replace(resolution, plans=plans, explanation=lines, outputs=())


class _Rows(nn.Module):
    """A model of the same layers whose forward runs every row on inputs of its own."""

    def __init__(self, model: nn.Module, rows: Sequence[Row]) -> None:
        super().__init__()
        self.training = model.training
        self._modules.update(model._modules)
        self._rows = tuple(rows)
        # A result that is the model's output would get a high-precision output by default.
        self.add_module(_ENDS, nn.ModuleList(nn.Identity() for _ in rows))

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        values = iter(inputs)
        ends: Any = self._modules[_ENDS]
        results = []
        for row, end in zip(self._rows, ends, strict=True):
            modules = [self.get_submodule(path) for path in row.paths]
            leaves, _ = flatten(row.run(modules, values))
            results.append([end(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        return tuple(results)


def _rows(model: nn.Module) -> Iterator[Row]:
    """The layers to replace, fused ones together; those with ``qconfig = None`` stay."""
    paths: dict[int, str] = {}
    for path, module in model.named_modules():
        paths.setdefault(id(module), path)
    done: set[int] = set()
    for path, module in _layers(model):
        if id(module) in done or find_qconfig(model, path)[0] is None:
            continue
        members = fused_layers(module) or (module,)
        lost = [type(m).__name__ for m in members if id(m) not in paths]
        if lost:
            raise PrepareError(
                f"prepare: {path} was fused with a {lost[0]} that is no longer in the model; call "
                "fuse_modules after the last change of its layers"
            )
        done.update(id(member) for member in members)
        names = tuple(paths[id(member)] for member in members)
        yield Row(names, members, _count(members[0]))


def _layers(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Known layers, not the parts of one. An Identity stays: it hands on tuples and dicts, too."""
    for name, child in model.named_children():
        where = f"{path}.{name}" if path else name
        if type(child) is nn.Identity:
            continue
        if is_functional(child) or (is_leaf(child) and find_module(type(child)) is not None):
            yield where, child
        elif not is_leaf(child):
            yield from _layers(child, where)


def _count(layer: nn.Module) -> int:
    """How many tensors a call takes at least."""
    if is_functional(layer):
        return 2
    parameters = signature_of(layer).parameters.values()
    return sum(p.default is p.empty for p in parameters)


def _example(row: Row) -> list[Tensor]:
    """Tensors that the row runs on."""
    first = _Chain(Row(row.paths[:1], row.layers[:1], row.count))
    arguments = {"inputs": (torch.empty(0),) * first.row.inputs}
    values = list(find_example(first, arguments, _SIZES).args)
    if row.inputs > first.row.inputs:  # the other operand of an add is like the sum
        with torch.no_grad():
            values.append(torch.randn_like(_Chain(row, values).shape_of_sum()))
    return values


class _Chain(nn.Module):
    """One row as a model."""

    def __init__(self, row: Row, values: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.row = row
        self.layers = nn.ModuleList(row.layers[:1])
        self.values = list(values)

    def forward(self, *inputs: Tensor) -> Any:
        return self.row.run(list(self.layers), iter(inputs))

    def shape_of_sum(self) -> Tensor:
        """What the first layer gives; batch norms keep its shape."""
        result: Tensor = self(*self.values)
        return result


def _put(model: nn.Module, path: str, layer: nn.Module, new: nn.Module) -> None:
    """Let ``new`` take the place of ``layer``, wherever the model has it."""
    found = find_module(type(layer))
    if isinstance(new, Composite):
        new = EagerComposite.of(new, layer)
    elif isinstance(new, QATOp) and is_functional(layer):
        new = FloatFunctional.of(new)
    elif isinstance(new, QATOp) and found is not None and found[0] is new.spec:
        new.call_form = _form(layer, new)
    forget_sources(new)
    places = [
        name for name, module in model.named_modules(remove_duplicate=False) if module is layer
    ]
    for place in dict.fromkeys([path, *places]):
        model.set_submodule(place, new)


def _note_groups(model: nn.Module, prepared: PreparedModel) -> None:
    """Tell the members of fused groups what the last one is."""
    groups = {op.name: node.meta.get(GROUP, "") for node, op in prepared.operators()}
    for path, module in model.named_modules():
        if isinstance(module, QATOp):
            module.group = groups.get(path, "")


def check_eager(hybrid: Hybrid) -> None:
    """Refuse what needs a graph."""
    level = get_consistency_level()
    if hybrid.enabled:
        raise PrepareError(
            "prepare: hybrid needs a graph, in which to put dequantize and quantize around the CPU "
            "operators; eager mode has none. Use prepare_qat_fx, or PrepareMethod.SYMBOLIC or JIT. "
            "qconfig = None keeps a module float in eager mode too"
        )
    if level is not None and level >= 1:
        raise PrepareError(
            f"prepare: consistency level {level} ties every operator to the one before it, which "
            "eager mode does not know. Use another method, or level 0"
        )


def settings_of(model: nn.Module) -> nn.Module:
    """The modules of ``model`` as they are now, over the same tensors: their settings stay when
    ``model`` changes.
    """
    known: dict[int, nn.Module] = {}

    def twin(module: nn.Module) -> nn.Module:
        if id(module) not in known:
            known[id(module)] = copy.copy(module)
            children = module._modules.items()
            known[id(module)]._modules = {k: None if v is None else twin(v) for k, v in children}
        return known[id(module)]

    return twin(model)


def _form(layer: nn.Module, op: QATOp) -> CallForm:
    form = CallForm(layer)
    bound = form.bind(*(object() for _ in range(_count(layer))))
    filled = [i for i, role in enumerate(op.roles(len(bound.tensors))) if role in op.params]
    form.learn(bound.tensors, bound.attrs, filled)
    return form
