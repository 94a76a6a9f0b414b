"""A decomposed layer in eager mode: its parts, called in the order of its decomposition."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.graph import GraphModel
from qtune.capture.program import Program
from qtune.capture.structure import LEAF, Spec, flatten, unflatten
from qtune.errors import PrepareError
from qtune.nn.qat import QATOp
from qtune.nn.qat.call_form import CallForm
from qtune.nn.qat.composite import Composite
from qtune.nn.quantized.qtensor import QTensor, plain_shape, untraced
from qtune.ops.registry import find_module
from qtune.ops.spec import Bound
from qtune.prepare.constness import note_constants
from qtune.prepare.decompose import emit_parts
from qtune.prepare.operators import Operators

_PLAN = "_plan"

_MOST_FORMS = 64
"""Graphs that a layer keeps for inputs of other shapes."""


class EagerComposite(Composite):
    """A :class:`Composite` that can be called as the layer that it stands for.

    The graph of the parts is made anew for every form of the inputs; the parts are the same.
    """

    call_form: CallForm
    params: dict[str, str]
    _forms: dict[Any, tuple[Program, Spec]]

    @classmethod
    def of(cls, composite: Composite, layer: nn.Module) -> EagerComposite:
        """Give the parts that ``prepare`` made a forward."""
        new = cls(composite.op, composite.name, composite.float_type)
        state = {k: v for k, v in vars(composite).items() if k not in ("op", "name", "float_type")}
        vars(new).update(state)
        found = find_module(type(layer))
        if found is None:
            raise PrepareError(f"{new.name}: {type(layer).__name__} is no layer of the registry")
        spec, target = found
        vars(new)["call_form"] = CallForm(layer)
        vars(new)["params"] = target.filled(layer, spec.roles)
        vars(new)["_forms"] = {}
        return new

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the parts."""
        bound = self.call_form.bind(*args, **kwargs)
        leaves, _ = flatten(bound.tensors)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (repr(bound.attrs), tuple(_form(value) for value in bound.tensors), self.training)
        if key not in self._forms:
            while len(self._forms) >= _MOST_FORMS:
                self._forms.pop(next(iter(self._forms)))
            with untraced():
                self._forms[key] = self._build(bound)
        program, spec = self._forms[key]
        return unflatten(program.run(tensors), spec)

    def keep_plan(self) -> None:
        """Remember the parts as they are, to find their order when they are converted."""
        vars(self)[_PLAN] = copy.deepcopy(self)

    def _build(self, bound: Bound) -> tuple[Program, Spec]:
        """The program of the parts for inputs of this form."""
        plan: EagerComposite | None = vars(self).get(_PLAN)
        graph, spec = (plan or self)._graph(bound)
        root = _at(self.name, self)
        note_constants(graph, root.get_submodule)
        return Program(graph, root), spec

    def _graph(self, bound: Bound) -> tuple[fx.Graph, Spec]:
        graph = fx.Graph()
        operands = [self._input(graph, i, value) for i, value in enumerate(bound.tensors)]
        model = GraphModel(_at(self.name, self), graph, None, LEAF, inspect.Signature())
        whole = graph.call_module(self.name, tuple(operands))
        graph.output(())
        known = {name for name, _ in self.named_modules()}
        result = emit_parts(Operators(model, self.training), whole, self._whole(), bound.attrs)
        new = [name for name, _ in self.named_modules() if name not in known]
        if new:
            self._refuse(new, bound)
        leaves, spec = flatten(result)
        output = next(node for node in graph.nodes if node.op == "output")
        output.args = (tuple(leaves),)
        return graph, spec

    def _refuse(self, new: Sequence[str], bound: Bound) -> None:
        for name in new:
            if "." not in name:
                delattr(self, name)
        shapes = ", ".join(str(_form(v)[0]) for v in bound.tensors if isinstance(v, Tensor))
        raise PrepareError(
            f"{self.name}: inputs of the shape {shapes} need the part {new[0]}, which prepare did "
            "not make. Prepare the model with method=PrepareMethod.JIT and example inputs"
        )

    def _whole(self) -> QATOp:
        """The operator before it was decomposed, with this module's parameters."""
        whole = QATOp(self.op, self.name, {}, float_type=self.float_type)
        whole._parameters, whole._buffers = self._parameters, self._buffers
        whole._modules = self._modules
        have = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        have |= {name for name, _ in self.named_buffers(remove_duplicate=False)}
        whole.params = {role: name for role, name in self.params.items() if name in have}
        return whole

    def _input(self, graph: fx.Graph, index: int, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        node = graph.placeholder(f"operand_{index}")
        shape, dtype = _form(value)
        node.meta.update(shape=shape, dtype=dtype, device=value.device, kind="input")
        return node

    def __getstate__(self) -> Mapping[str, Any]:
        return {**vars(self), "_forms": {}}


def _form(value: Any) -> Any:
    """Shape and float dtype of a tensor (codes stand for float32), or the text of a value."""
    if not isinstance(value, Tensor):
        return repr(value)
    with torch._C.DisableTorchFunction():  # a recording must not take this for a use of the sizes
        return plain_shape(value), torch.float32 if isinstance(value, QTensor) else value.dtype


def _at(path: str, module: nn.Module) -> nn.Module:
    """A model that has nothing but ``module``, at ``path``."""
    for name in reversed(path.split(".")):
        holder = nn.Module()
        holder.add_module(name, module)
        module = holder
    return module
