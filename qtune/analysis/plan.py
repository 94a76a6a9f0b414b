"""A prepared model that computes in float, as a list of kernels: what an ablation runs.

A ``Plan`` runs the operators' kernels on parameters that are looked up once, not the modules
around them. Weights of convolutions may lie in channels_last, which on CPU saves a third of a
forward; the results then follow by torch's own rules, and differ from those of the model's own
format by the rounding of sums. Whatever a kernel alone can't stand for is called as the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.ambient import AUTOCAST, GRAD, in_modes
from qtune.capture.graph import GraphModel
from qtune.capture.members import module_at
from qtune.capture.program import Compute, Program, Registers
from qtune.nn.qat.op import TRAINING, QATOp

_METHODS = ("forward", "fill", "param", "compute", "quantize_weight")


@dataclass(frozen=True, slots=True)
class DirectOp:
    """One call of an operator without its module: ``kernel(*operands, **attrs)``.

    ``operands`` gives the operands of the call, ``None`` where a parameter stands; ``params`` are
    those by the operand's index.
    """

    op: QATOp
    operands: Callable[[Registers], tuple[Any, ...]]
    dynamic: Callable[[Registers], Mapping[str, Any]] | None
    attrs: Mapping[str, Any]
    params: Mapping[int, Any]

    def __call__(self, registers: Registers, replaced: Mapping[int, Tensor] | None = None) -> Any:
        """The result; ``replaced`` are operands by index that take the place of others."""
        values = list(self.operands(registers))
        for index, value in self.params.items():
            values[index] = value
        for index, value in (replaced or {}).items():
            values[index] = value
        attrs = self.attrs
        if self.dynamic is not None:
            attrs = {**attrs, **self.dynamic(registers)}
        return self.op.compute(values, attrs)

    def operand(self, registers: Registers, index: int) -> Any:
        """What the kernel gets as operand ``index``."""
        return self.params[index] if index in self.params else self.operands(registers)[index]


class Plan(Program):
    """The compiled form of a model of one branch that is in eval mode and computes in float.

    ``direct``: the calls that need no module. ``channels_last``: the format of weights. Parameters
    are read when the plan is made.
    """

    def __init__(self, model: GraphModel, *, channels_last: bool) -> None:
        self.direct: dict[fx.Node, DirectOp] = {}
        self.channels_last = channels_last
        super().__init__(model.graph, model)
        self.place = {step.node: place for place, step in enumerate(self.steps)}
        self.sources = [self._registers(step.node.all_input_nodes) for step in self.steps]
        (output,) = model.graph.find_nodes(op="output")
        self.results = self._registers(output.all_input_nodes)

    @property
    def size(self) -> int:
        """The number of registers."""
        return len(self._register)

    def register(self, node: fx.Node) -> int:
        """Where the value of ``node`` lies."""
        return self._register[node]

    def module_call(self, node: fx.Node) -> Compute:
        """The call of the module itself, with its hooks and fake-quantizes."""
        call: Compute = in_modes(super()._call_module(node), node.meta)
        return call

    def _call_module(self, node: fx.Node) -> Compute:
        module = module_at(self._root, str(node.target).split("."))
        direct = self._direct(node, module)
        if direct is None:
            return super()._call_module(node)
        self.direct[node] = direct
        return direct

    def _direct(self, node: fx.Node, module: nn.Module) -> DirectOp | None:
        if not isinstance(module, QATOp) or not is_plain(module):
            return None
        if AUTOCAST in node.meta or GRAD in node.meta:
            return None
        roles = module.roles(len(node.args))
        filled = {index for index, role in enumerate(roles) if role in module.params}
        if any(node.args[index] is not None for index in filled):
            return None
        attrs = dict(module.attrs)
        if module.follows_training:
            attrs[TRAINING] = module.training
        return DirectOp(
            module,
            self._argument(node.args),
            self._argument(node.kwargs) if node.kwargs else None,
            attrs,
            {index: self._param(module, roles[index]) for index in filled},
        )

    def _param(self, op: QATOp, role: str) -> Any:
        value = op.param(role)
        return self.formatted(value) if role == op.spec.weight_role else value

    def formatted(self, value: Any) -> Any:
        """A weight; that of a two-dimensional convolution in this plan's format."""
        if not self.channels_last or not isinstance(value, Tensor) or value.dim() != 4:
            return value
        return value.detach().contiguous(memory_format=torch.channels_last)


def is_plain(op: QATOp) -> bool:
    """Whether an operator that computes in float is nothing but its kernel on its parameters."""
    inherited = all(getattr(type(op), name) is getattr(QATOp, name) for name in _METHODS)
    return (
        inherited
        and op.spec.float_kernel is not None
        and op.call_form is None
        and op.kept is None
        and (not op.grid_sources or op.spec.exact is None)  # that form asks for its input's grid
        and not any(has_hooks(module) for module in op.modules())
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs hooks, which may be the user's."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
