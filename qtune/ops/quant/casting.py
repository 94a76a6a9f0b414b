"""Casts that change nothing (``y.float()`` of a float32 tensor) as calls of ``identity``."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from qtune.ops.spec import Bound

KIND = "float32"
"""``attrs["kind"]`` of a cast to float32."""


def bind_float(input: Any, *, memory_format: Any = None) -> Bound:
    """``x.float()``."""
    return _cast(input, torch.float32, "float()")


def bind_type_as(input: Any, other: Any) -> Bound:
    """``x.type_as(other)``."""
    return _cast(input, _dtype(other), "type_as()")


def bind_to(input: Any, *args: Any, **kwargs: Any) -> Bound:
    """``x.to(dtype)`` and ``x.to(other)``; a device is none of the registry's business."""
    target = kwargs.get("dtype", kwargs.get("other", args[0] if args else None))
    dtype = target if isinstance(target, torch.dtype) else _dtype(target)
    devices = (str, int, torch.device)
    given = [*args, *(value for key, value in kwargs.items() if key == "device")]
    moved = any(isinstance(v, devices) and not isinstance(v, bool) for v in given)
    if dtype is None or moved:
        raise NotImplementedError(
            "to(device) moves data between devices, which no operator does; move the model and "
            "its inputs before the call, and leave it out of forward"
        )
    return _cast(input, dtype, "to()")


def _cast(input: Any, dtype: torch.dtype | None, call: str) -> Bound:
    own = _dtype(input)
    if own == dtype == torch.float32:
        return Bound((input,), {"kind": KIND, "memory_format": None})
    raise NotImplementedError(
        f"{call} makes {dtype} of {own}: a real change of the dtype has no integer form. Only a "
        "cast of float32 to float32 passes its input on; cast before the model or after it"
    )


def _dtype(value: Any) -> torch.dtype | None:
    """The dtype of a node, a tensor, or a value of a graph in HBIR."""
    dtype = value.meta.get("dtype") if isinstance(value, fx.Node) else getattr(value, "dtype", None)
    if isinstance(dtype, ir.DataType):
        dtype = getattr(torch, str(dtype.numpy()), None)
    if dtype is None and hasattr(value, "data"):  # a constant of the lowering
        dtype = value.data.dtype
    return dtype if isinstance(dtype, torch.dtype) else None
