"""``fast_mode``: the programs of a converted graph joined to one plan, which a call runs at once.

The plan is made when a call of a new kind (structure, shapes, dtypes, devices, other arguments)
comes, by recording that call. It is used only where it must give the same bits as module after
module does; every other call runs the modules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module

from qtune.bpu.interpreter import Program
from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs
from qtune.capture.structure import Spec, flatten, unflatten
from qtune.errors import QtuneError
from qtune.nn.quantized.op import QuantizedOp, refuse_trace
from qtune.nn.quantized.recording import Recording

_log = logging.getLogger(__name__)

_PLANS = 16
"""Most plans that one model keeps, one for each kind of call."""
_READS = frozenset({"tolist", "numpy", "__array__", "__dlpack__", "data_ptr"})
"""What gives data to Python past every torch operator."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One kind of call. ``leaves``: those of the result; tensors are numbers of an output."""

    program: Program
    leaves: tuple[Any, ...]
    spec: Spec
    device: torch.device

    def run(self, tensors: Sequence[Tensor]) -> Any:
        made = self.program.run([tensor.detach().cpu() for tensor in tensors])
        results = [made[leaf.name] if isinstance(leaf, _Output) else leaf for leaf in self.leaves]
        moved = (x.to(self.device) if isinstance(x, Tensor) else x for x in results)
        return unflatten(list(moved), self.spec)


@dataclass(frozen=True, slots=True)
class _Output:
    name: str


class WholePlans:
    """The plans of one model. Copies and files of the model begin without any."""

    def __init__(self) -> None:
        self._plans: dict[Any, _Plan | None] = {}
        self._watched: _Watched | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return WholePlans, ()

    def run(
        self,
        model: GraphModel,
        by_modules: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """What ``by_modules(*args, **kwargs)``, the forward of ``model``, gives."""
        refuse_trace(type(model).__name__)
        leaves, spec = flatten((args, dict(kwargs)))
        key = _kind(leaves, spec)
        if key is None or model.training or _is_observed():
            return by_modules(*args, **kwargs)
        if self._watched is None or not self._watched.unchanged():
            self._plans.clear()
            self._watched = _Watched.of(model)
        if self._watched.hooked():
            return by_modules(*args, **kwargs)
        if key not in self._plans:
            return self._record(key, model, by_modules, args, kwargs)
        plan = self._plans[key]
        if plan is None:
            return by_modules(*args, **kwargs)
        return plan.run([leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def _record(
        self,
        key: Any,
        model: GraphModel,
        by_modules: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run module after module and make the plan of such calls, ``None`` where there is none."""
        while len(self._plans) >= _PLANS:
            self._plans.pop(next(iter(self._plans)))
        self._plans[key] = None
        recording = Recording(by_modules, Inputs(*args, **kwargs))
        why = self._obstacle(recording, model.graph)
        try:
            if not why:
                self._plans[key] = _plan(recording)
        except QtuneError as error:
            why = str(error)
        if why:
            _log.info("fast_mode: such calls run module after module: %s", why)
        return recording.result

    def _obstacle(self, recording: Recording, graph: fx.Graph) -> str:
        """Why the next call of this kind may take another way than the recorded one."""
        if self._watched is None or not self._watched.unchanged():
            return "forward changes the model"
        decided = [*recording.recorder.record.decided, *_reads(graph)]
        return f"forward depends on {', '.join(decided)}" if decided else ""


def _plan(recording: Recording) -> _Plan:
    function = recording.module()[0]
    names = (item.name for item in function.outputs)
    leaves, spec = flatten(recording.result)
    slots = tuple(_Output(next(names)) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return _Plan(function.program(), slots, spec, recording.inputs[0].device)


def _kind(leaves: Sequence[Any], spec: Spec) -> Any:
    """What of a call decides its plan; ``None`` where that can't be told or nothing goes in."""
    kinds: list[Any] = [spec]
    devices = set()
    for leaf in leaves:
        if type(leaf) in (Tensor, nn.Parameter):
            kinds.append((tuple(leaf.shape), leaf.dtype, leaf.device))
            devices.add(leaf.device)
        elif leaf is None or type(leaf) in (bool, int, float, str):
            kinds.append((type(leaf), leaf))
        else:
            return None
    return tuple(kinds) if len(devices) == 1 and devices.pop().type != "meta" else None


def _is_observed() -> bool:
    """Whether somebody wants to see single operators: a torch mode, or hooks on every module."""
    hooks = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    return torch._C._len_torch_dispatch_stack() > 0 or any(hooks)


@dataclass(frozen=True, slots=True)
class _Watched:
    """What a plan was made of: operators with their programs, and the other tensors."""

    ops: tuple[tuple[QuantizedOp, Any], ...]
    modules: tuple[nn.Module, ...]
    tensors: tuple[tuple[dict[str, Any], str, Any, int], ...]

    @classmethod
    def of(cls, model: nn.Module) -> _Watched:
        modules = tuple(module for name, module in model.named_modules() if name)
        ops = tuple((m, m._programs) for m in modules if isinstance(m, QuantizedOp))
        inside = {id(part) for op, _ in ops for part in op.modules()}
        others = [module for module in model.modules() if id(module) not in inside]
        return cls(ops, modules, tuple(_tensors(others)))

    def unchanged(self) -> bool:
        """Whether no state was loaded, nothing was moved and no tensor was written to."""
        if any(op._programs is not programs for op, programs in self.ops):
            return False
        return all(
            own.get(name) is tensor and (tensor is None or tensor._version == version)
            for own, name, tensor, version in self.tensors
        )

    def hooked(self) -> bool:
        """Whether a module has hooks, which must see its calls."""
        return any(m._forward_hooks or m._forward_pre_hooks for m in self.modules)


def _tensors(modules: Sequence[nn.Module]) -> Iterator[tuple[dict[str, Any], str, Any, int]]:
    for module in modules:
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                yield own, name, tensor, 0 if tensor is None else tensor._version


def _reads(graph: fx.Graph) -> list[str]:
    """The calls that give data to Python without a torch operator."""
    named = (name for node in graph.nodes for name in (node.target, *node.args[:1]))
    return [name for name in named if isinstance(name, str) and name in _READS]
