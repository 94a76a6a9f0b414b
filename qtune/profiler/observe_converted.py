"""Run a converted model once and keep the result of every operator, as real numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.inputs import Inputs
from qtune.nn.quantized.call import OpCall
from qtune.nn.quantized.op import QuantizedOp
from qtune.nn.quantized.preserved import PreservedOp
from qtune.nn.quantized.qtensor import QTensor
from qtune.profiler.observe import Observation, OpRecord, named_results, operator_name
from qtune.quantization.convert import QuantizedModel

ReplaceValue = Callable[[str, Any], Any]
"""(operator name, its result in real numbers) -> the real numbers to go on with."""


def is_converted(model: object) -> bool:
    """Whether ``model`` came from ``convert`` or ``convert_fx``."""
    return isinstance(model, nn.Module) and any(
        isinstance(module, (QuantizedOp, PreservedOp)) for module in model.modules()
    )


def observe_converted(
    model: nn.Module, inputs: Inputs, *, replace: ReplaceValue | None = None
) -> Observation:
    """Run a model that ``convert`` or ``convert_fx`` returned; names are the prepared model's.

    Members of a fused group before its last have no result there. ``replace`` may give other real
    numbers for an operator to go on with; they are put on the grid of its result.
    """
    note = _Notes(replace)
    with torch.no_grad():
        if isinstance(model, QuantizedModel):
            outputs = model.run_nodes(inputs, lambda node, value: note.node(model, node, value))
        else:
            with _hooked(model, note):
                outputs = model(*inputs.args, **inputs.kwargs)
    return Observation(outputs, note.records)


class _Notes:
    """Makes a record of each result."""

    def __init__(self, replace: ReplaceValue | None) -> None:
        self.replace = replace
        self.records: dict[str, OpRecord] = {}

    def node(self, model: QuantizedModel, node: fx.Node, value: Any) -> Any:
        """The result of a node of a graph."""
        name = operator_name(node)
        if not name:
            return value
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        return self.result(name, module, str(node.meta["op"]), value)

    def result(self, name: str, module: nn.Module | None, op: str, value: Any) -> Any:
        """Keep the result of an operator, or of what stands for it."""
        if self.replace is not None:
            value = _on_grid(self.replace(name, _real(value)), value)
        kind = op if module is None else f"{type(module).__module__}.{type(module).__qualname__}"
        for key, item in named_results(name, value, self.records):
            scales = item.scales if isinstance(item, QTensor) else ()
            self.records[key] = OpRecord(
                key,
                kind,
                _real(item).detach().clone(),
                scales[0] if len(scales) == 1 else None,
                str(item.dtype),
                op=op,
                owner=name,
            )
        return value


@contextmanager
def _hooked(model: nn.Module, note: _Notes) -> Iterator[None]:
    """Within the block every operator of an eager model tells its result."""

    def tell(module: Any, args: Any, result: Any) -> Any:
        if isinstance(result, OpCall):  # a group that is not complete yet
            return None
        return note.result(module.name, module, getattr(module, "op", ""), result)

    handles = [
        module.register_forward_hook(tell)
        for module in model.modules()
        if isinstance(module, (QuantizedOp, PreservedOp))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _real(value: Any) -> Any:
    """``value`` with real numbers in place of codes."""
    if isinstance(value, QTensor):
        return value.dequantize()
    if isinstance(value, (tuple, list)):
        return tuple(_real(item) for item in value)
    return value


def _on_grid(value: Any, like: Any) -> Any:
    """``value`` as what ``like`` is: codes on the same grid, or as it comes."""
    if isinstance(like, (tuple, list)):
        return tuple(_on_grid(a, b) for a, b in zip(value, like, strict=True))
    if not isinstance(like, QTensor) or not isinstance(value, Tensor):
        return value
    scale = like.q_per_channel_scales()
    made = QTensor.quantize(value, scale, like.dtype, like.ch_axis)
    made.table_source = like.table_source
    return made
