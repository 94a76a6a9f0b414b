"""Prepared models aren't traced: a trace would hold one state of their fake-quantizes."""

from __future__ import annotations

import torch
from torch import nn

from qtune.errors import ArgumentError


def refuse_trace_of_prepared(model: nn.Module) -> None:
    """Raise ``ArgumentError`` under ``torch.jit.trace``; torch's ONNX exporter may trace."""
    if torch._C._get_tracing_state() is not None and not torch.onnx.is_in_onnx_export():
        raise ArgumentError(
            f"torch.jit.trace: this {type(model).__name__} was made by prepare, and a prepared "
            "model isn't traced: its fake-quantizes change with their state. Convert it first: "
            "torch.jit.trace(convert(model.eval()), example_inputs); see docs/deploy.md"
        )
