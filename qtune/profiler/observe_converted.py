"""Run a converted model once and keep the result of every operator, as real numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qtune.capture.inputs import Inputs
from qtune.nn.quantized.call import OpCall
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


def is_converted(model: object) -> bool:
    """Whether ``model`` came from ``convert`` or ``convert_fx`` and is still a module of Python."""
    return not isinstance(model, torch.jit.ScriptModule) and holds_converted(model)


def observe_converted(model: nn.Module, inputs: Inputs) -> Observation:
    """Run a model that ``convert`` or ``convert_fx`` returned, with a graph or without.

    Names are the prepared model's. Members of a fused group before its last have no result there.
    """
    if isinstance(model, QuantizedModel):
        return observe_graph(model, inputs)
    kept = Kept()
    call = own_inputs(inputs)
    with torch.no_grad(), _hooked(model, kept):
        outputs = model(*call.args, **call.kwargs)
    return Observation(outputs, kept)


@contextmanager
def _hooked(model: nn.Module, kept: Kept) -> Iterator[None]:
    """Within the block every operator of an eager model tells its result."""

    def tell(module: Any, args: Any, result: Any) -> None:
        if isinstance(result, OpCall):  # a group that is not complete yet
            return
        op = getattr(module, "op", "")
        for key, value in named_results(module.name, result, kept):
            real, grid = real_numbers(value), grid_of(None, value)
            kept.note(OpRecord(key, type_name(module), real, *grid, op=op, owner=module.name))

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
