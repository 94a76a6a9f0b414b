"""Run a converted model of eager mode, which has no graph, and show every operator's result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.nn.quantized.call import OpCall
from qtune.profiler.op_results import grid_of, is_operator, named_results, real_numbers, type_name
from qtune.profiler.record import OnRecord, OpRecord


def stream_hooked(
    model: nn.Module, inputs: Inputs, note: OnRecord, *, keep_inputs: bool = True
) -> Any:
    """Run ``model`` once, give each operator's record to ``note``, and return the outputs.

    Names are the prepared model's. Members of a fused group before its last have no result there.
    """
    with torch.no_grad(), _hooked(model, note, keep_inputs):
        return model(*inputs.args, **inputs.kwargs)


@contextmanager
def _hooked(model: nn.Module, note: OnRecord, keep_inputs: bool) -> Iterator[None]:
    """Within the block every operator tells its result."""
    seen: set[str] = set()

    def tell(module: Any, args: Any, result: Any) -> None:
        if isinstance(result, OpCall):  # a group that is not complete yet
            return
        operands = tuple(value for arg in args for value in opened(arg))
        shapes = tuple(tuple(v.shape) if isinstance(v, Tensor) else None for v in operands)
        kept = tuple(real_numbers(value) for value in operands) if keep_inputs else ()
        for key, value in named_results(module.name, result, seen):
            seen.add(key)
            op = getattr(module, "op", "")
            real, grid = real_numbers(value), grid_of(None, value)
            note(OpRecord(key, type_name(module), real, *grid, shapes, kept, op, module.name))

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


def opened(value: Any) -> tuple[Any, ...]:
    """The operands of a fused group, whose members pass on what is to be called."""
    return tuple(value.operands) if isinstance(value, OpCall) else (value,)
