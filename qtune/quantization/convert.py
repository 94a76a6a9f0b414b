"""``convert`` and ``convert_fx``: from a prepared model to one whose operators run on integers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from qtune.capture.view import without_aside
from qtune.errors import ArgumentError
from qtune.nn.eager import eager_facts
from qtune.nn.prepared import FloatOp, PreparedModel
from qtune.nn.preserved import OfFloatClass
from qtune.nn.qat import QATOp
from qtune.nn.qat.kind import is_of
from qtune.nn.quantized import QuantizedOp
from qtune.nn.quantized.passing import FusedAway
from qtune.nn.quantized.preserved import PRESERVE
from qtune.nn.quantized.qtensor import untraced
from qtune.nn.quantized.whole import WholePlans
from qtune.nn.quantized.wiring import Wiring
from qtune.ops.op_types import as_types
from qtune.prepare.absorb import absorb_for_export
from qtune.prepare.constness import constant_nodes
from qtune.quantization.convert_eager import convert_eager, replacement
from qtune.quantization.hbdk4 import check_state, pre_export

_log = logging.getLogger(__name__)

GROUP = "group"


class QuantizedModel(OfFloatClass):
    """The graph of a converted model. ``march`` and ``consistency_level``: of the prepared one.

    ``float_ops``: what stays float, as of the prepared one. ``plans``: with ``fast_mode``, the
    plans of whole calls.
    """

    float_ops: tuple[FloatOp, ...] = ()
    march: str = ""
    consistency_level: int | None = None
    plans: WholePlans | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph: module after module, or with ``fast_mode`` in one plan."""
        if self.plans is None or self._watch is not None:
            return super().forward(*args, **kwargs)
        return self.plans.run(self, super().forward, args, kwargs)

    @classmethod
    def of(cls, graph: PreparedModel) -> QuantizedModel:
        """The converted form of a graph; takes over its modules."""
        model = cls.__new__(cls)
        model.__dict__ = graph.__dict__
        return model


def convert(
    module: nn.Module,
    mapping: Mapping[type, type] | None = None,
    inplace: bool = False,
    remove_qconfig: bool = True,
    fast_mode: bool = False,
) -> Any:
    """Return ``module`` with ``qtune.nn.quantized`` modules in place of its prepared operators.

    ``module``: a calibrated or trained model that ``prepare`` made, or a tree of modules with
    prepared operators in it. The result runs integers on the emulated BPU, equal in
    every bit to ``hbdk4.convert`` of the exported model; its operators pass
    :class:`~qtune.nn.quantized.QTensor`. What is float stays torch's own functions.

    ``mapping``: class of a prepared operator -> class to put in its place, made by
    ``cls.from_float(op)``. ``inplace``: change ``module`` itself instead of a copy.
    ``remove_qconfig``: drop the attribute ``qconfig`` of all modules. ``fast_mode``: a faster
    forward of the same bits, for running the model in Python: a graph runs as one plan, without
    the modules; the result can't be traced, checked or compiled.

    A model in training mode is converted as in eval mode, with a warning. In a model without a
    graph, layers that never ran, which have no scale, raise when the result calls them.

    Raises ``ExportError`` while fake-quantizes are in a state that does not quantize,
    ``NotCalibratedError`` for those without a scale.
    """
    _check_arguments("convert", module, mapping, fast_mode)
    if any(m.training for m in module.modules() if isinstance(m, (PreparedModel, QATOp))):
        _log.warning("convert: the model is in training mode; it is converted as in eval mode")
        module, inplace = (module if inplace else copy.deepcopy(module)).eval(), True
    missing = check_state(module, "convert", partly=not isinstance(module, PreparedModel))
    if missing:
        names = ", ".join(missing)
        _log.warning("convert: never ran, so without a scale; called, they raise: %s", names)
    if isinstance(module, PreparedModel):
        prepared = pre_export(module, inplace=inplace)
        result: nn.Module = _convert_graph(prepared, dict(mapping or {}))
    else:
        _check_eager(module)
        tree = module if inplace else copy.deepcopy(module)
        absorb_for_export(tree)
        result = convert_eager(tree, dict(mapping or {}))
    if remove_qconfig:
        _remove_qconfigs(result)
    if fast_mode:
        _make_fast(result)
    return result.eval()


def convert_fx(
    graph_module: nn.Module,
    inplace: bool | Mapping[str, Any] | None = False,
    convert_custom_config_dict: Mapping[str, Any] | bool | None = None,
    _remove_qconfig: bool = True,
    fast_mode: bool = False,
) -> Any:
    """:func:`convert` for a model with a graph.

    ``convert_custom_config_dict``: ``{"preserved_attributes": [...]}``, names of attributes of
    ``graph_module`` that the result must have, too.

    By position the plugin guide's order works as well: ``graph_module``,
    ``convert_custom_config_dict``, ``_remove_qconfig``.
    """
    if not isinstance(inplace, bool):
        if isinstance(convert_custom_config_dict, Mapping):
            raise ArgumentError("convert_fx: inplace must be a bool where a dict comes behind it")
        if convert_custom_config_dict is not None:
            _remove_qconfig = convert_custom_config_dict
        inplace, convert_custom_config_dict = False, inplace
    if not isinstance(graph_module, PreparedModel):
        raise ArgumentError(
            f"convert_fx: expected a model with a graph that prepare or prepare_qat_fx made, got "
            f"{type(graph_module).__name__}; convert takes trees of prepared modules"
        )
    names = _preserved_attributes(convert_custom_config_dict)
    missing = [name for name in names if not hasattr(graph_module, name)]
    if missing:
        raise ArgumentError(f"convert_fx: the model has no attribute {', '.join(missing)}")
    kept = {name: getattr(graph_module, name) for name in names}
    result = convert(graph_module, None, inplace, _remove_qconfig, fast_mode)
    for name, value in kept.items():
        if not hasattr(result, name):
            setattr(result, name, value)
    return result


def set_preserve_qat_mode(
    model: nn.Module,
    prefixes: Sequence[str] = (),
    types: Sequence[type] = (),
    value: bool = True,
) -> None:
    """Keep modules in their QAT form when ``model`` is converted, to find where accuracy goes.

    ``model``: float or prepared; ``prepare`` takes the choice over. ``prefixes``: beginnings of
    module names; ``types``: classes, of a prepared model's operators also the float ones; both
    together are one choice or the other; without either every module. ``value=False`` takes the
    choice back. A fused group is kept if one of its members is (the documents set it on the
    convolution).
    """
    prefixes = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
    classes = as_types(types) or ()
    found = set()
    for name, module in model.named_modules():
        hits = {prefix for prefix in prefixes if name == prefix or name.startswith(prefix)}
        found |= hits
        if hits or is_of(module, classes) or not (prefixes or classes):
            setattr(module, PRESERVE, value)
    unused = [prefix for prefix in prefixes if prefix not in found]
    if unused:
        raise ArgumentError(
            f"set_preserve_qat_mode: no module's name begins with {', '.join(unused)}"
        )
    absent = [c for c in classes if not any(is_of(m, (c,)) for m in model.modules())]
    if absent:
        raise ArgumentError(
            f"set_preserve_qat_mode: no module is a {', '.join(c.__name__ for c in absent)}; the "
            "classes of prepared operators are those of qtune.nn.qat"
        )


def _check_arguments(where: str, module: Any, mapping: Any, fast_mode: Any) -> None:
    if not isinstance(module, nn.Module) or not any(
        isinstance(item, QATOp) for item in module.modules()
    ):
        raise ArgumentError(
            f"{where}: expected a prepared model, got {type(module).__name__} without a prepared "
            "operator; call prepare (or prepare_qat, prepare_qat_fx) and calibrate first"
        )
    if mapping is not None and not (
        isinstance(mapping, Mapping) and all(hasattr(c, "from_float") for c in mapping.values())
    ):
        raise ArgumentError(
            f"{where}: mapping must map classes of prepared operators to classes with a method "
            f"from_float, got {mapping!r}"
        )
    if not isinstance(fast_mode, bool):
        raise ArgumentError(f"{where}: fast_mode must be True or False, got {fast_mode!r}")


def _check_eager(module: nn.Module) -> None:
    """Refuse a part of a graph: which operators are fused and what is constant says the graph."""
    if isinstance(module, QATOp) or eager_facts(module) is None:
        raise ArgumentError(
            f"convert: {type(module).__name__} is a part of a model that was prepared with a "
            "graph; convert the whole model and take the part from the result"
        )


def _preserved_attributes(config: Any) -> list[str]:
    if config is None:
        return []
    if not isinstance(config, Mapping) or set(config) - {"preserved_attributes"}:
        raise ArgumentError(
            "convert_fx: convert_custom_config_dict takes {'preserved_attributes': [names]}, got "
            f"{config!r}"
        )
    return list(config.get("preserved_attributes", ()))


def _make_fast(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, QuantizedOp):
            module.fast_mode = True
    if isinstance(model, QuantizedModel):
        model.plans = WholePlans()


def _remove_qconfigs(model: nn.Module) -> None:
    for module in model.modules():
        if "qconfig" in module.__dict__:
            del module.qconfig


def _convert_graph(model: PreparedModel, mapping: Mapping[type, type]) -> QuantizedModel:
    """Replace every group of the graph by one module at its last member's name."""
    model = without_aside(model)  # quantized modules do not train
    march, level = model.march, model.consistency_level
    constants = constant_nodes(model.graph)
    made: dict[tuple[Any, ...], tuple[str, nn.Module]] = {}
    groups: dict[str, str] = {}
    for nodes in _groups(model):
        paths = tuple(str(node.target) for node in nodes)
        ops: list[Any] = [model.get_submodule(path) for path in paths]
        wiring, outside = Wiring.of(nodes)
        fixed = tuple(i for i, node in enumerate(outside) if node in constants)
        key = (paths, repr(wiring), fixed)
        if key not in made:
            variants = sum(known[0] == paths for known in made)
            target = f"{paths[-1]}_call_{variants}" if variants else paths[-1]
            made[key] = target, replacement(ops, wiring, march, level, fixed, mapping)
        _put(model, nodes, outside, made[key][0])
        groups.update(dict.fromkeys(paths, paths[-1]))
    _read_sizes_untraced(model.graph)
    model.graph.lint()
    model.recompile()
    result = QuantizedModel.of(model)
    result.march, result.consistency_level = march, level
    for name in ("resolution", "unfused"):
        result.__dict__.pop(name, None)
    _install(result, dict(made.values()), groups)
    return result


def _groups(model: PreparedModel) -> list[list[fx.Node]]:
    """The calls of operators, those of one fused group together, in order of execution."""
    calls = [node for node, _ in model.operators()]
    order = {node: index for index, node in enumerate(calls)}
    groups: list[list[fx.Node]] = []
    taken: set[fx.Node] = set()
    for node in reversed(calls):
        if node not in taken:
            members = sorted(_members(node, order), key=order.__getitem__)
            taken.update(members)
            groups.append(members)
    return groups[::-1]


def _members(last: fx.Node, calls: Container[fx.Node]) -> set[fx.Node]:
    """The calls that make what ``last`` takes within its group."""
    group = last.meta.get(GROUP)
    found = {last}
    waiting = list(last.all_input_nodes) if group else []
    while waiting:
        node = waiting.pop()
        if node in calls and node not in found and node.meta.get(GROUP) == group:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _put(
    model: PreparedModel, nodes: Sequence[fx.Node], outside: Sequence[fx.Node], target: str
) -> None:
    """Call ``target`` at the place of the group's last call."""
    last = nodes[-1]
    last.target = target
    last.args, last.kwargs = tuple(outside), {}
    for node in reversed(nodes[:-1]):
        model.graph.erase_node(node)


def _read_sizes_untraced(graph: fx.Graph) -> None:
    """Sizes are plain numbers under ``torch.jit.trace``: programs have fixed shapes."""
    for node in graph.nodes:
        if node.meta.get("kind") in ("size", "value") and node.op == "call_method":
            node.args = (node.target, *node.args)
            node.op, node.target = "call_function", call_untraced
        elif node.meta.get("kind") in ("size", "value") and node.target is getattr:
            node.target = getattr_untraced


def call_untraced(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """``x.name(...)`` as plain numbers."""
    with untraced():
        return getattr(x, name)(*args, **kwargs)


def getattr_untraced(x: Any, name: str) -> Any:
    """``x.name`` as plain numbers; the dtype is that of the float model."""
    with untraced():
        is_dtype = name == "dtype" and getattr(x, "is_quantized", False)
        return torch.float32 if is_dtype else getattr(x, name)


def _install(
    model: QuantizedModel, modules: Mapping[str, nn.Module], groups: Mapping[str, str]
) -> None:
    """Put the modules in place; operators that no call needs any more hand their input on."""
    for path, module in modules.items():
        model.set_submodule(path, module)
    for path, module in list(model.named_modules()):
        if isinstance(module, QATOp) and not _inside(path, modules):
            model.set_submodule(path, FusedAway(groups.get(path, path)))


def _inside(path: str, places: Iterable[str]) -> bool:
    return any(path.startswith(f"{place}.") for place in places)
