"""Run a converted model once and keep the result of every operator, as real numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.nn.quantized.call import OpCall
from qtune.nn.quantized.qtensor import QTensor
from qtune.profiler.observe import (
    grid_of,
    is_operator,
    named_results,
    observe_graph,
    own_inputs,
    real_numbers,
    type_name,
)
from qtune.profiler.record import Kept, Observation, OpRecord
from qtune.quantization.convert import QuantizedModel
from qtune.quantization.deploy import is_converted as holds_converted

ReplaceValue = Callable[[str, Any], Any]
"""(operator name, its result in real numbers) -> the real numbers to go on with."""


def is_converted(model: object) -> bool:
    """Whether ``model`` came from ``convert`` or ``convert_fx`` and is still a module of Python."""
    return not isinstance(model, torch.jit.ScriptModule) and holds_converted(model)


def observe_converted(
    model: nn.Module, inputs: Inputs, *, replace: ReplaceValue | None = None
) -> Observation:
    """Run a model that ``convert`` or ``convert_fx`` returned, with a graph or without.

    Names are the prepared model's. Members of a fused group before its last have no result there.
    ``replace`` may give other real numbers for an operator to go on with; they are put on the grid
    of its result.
    """

    def exchange(name: str, value: Any) -> Any:
        return value if replace is None else _on_grid(replace(name, _real(value)), value)

    if isinstance(model, QuantizedModel):
        return observe_graph(model, inputs, replace=lambda _, name, value: exchange(name, value))
    kept = Kept()
    call = own_inputs(inputs)
    with torch.no_grad(), _hooked(model, kept, exchange):
        outputs = model(*call.args, **call.kwargs)
    return Observation(outputs, kept)


@contextmanager
def _hooked(model: nn.Module, kept: Kept, exchange: ReplaceValue) -> Iterator[None]:
    """Within the block every operator of an eager model tells its result."""

    def tell(module: Any, args: Any, result: Any) -> Any:
        if isinstance(result, OpCall):  # a group that is not complete yet
            return None
        result = exchange(module.name, result)
        op = getattr(module, "op", "")
        for key, value in named_results(module.name, result, kept):
            real, grid = real_numbers(value), grid_of(None, value)
            kept.note(OpRecord(key, type_name(module), real, *grid, op=op, owner=module.name))
        return result

    handles = [
        module.register_forward_hook(tell)
        for module in model.modules()
        if is_operator(module) and hasattr(module, "members")
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _real(value: Any) -> Any:
    """``value``, or each item of it, in real numbers."""
    if isinstance(value, (tuple, list)):
        return tuple(_real(item) for item in value)
    return real_numbers(value)


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
