"""Casts as calls of ``identity``: those that change nothing, and masks and integers as numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from qtune.ops.spec import Bound

KIND = "float32"
"""``attrs["kind"]`` of a cast of float32 to float32."""

CAST = "cast"
"""``attrs["kind"]`` of a cast of a mask or of integers; ``attrs["dtype"]`` names the result's."""

_PLAIN = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def bind_float(input: Any, *, memory_format: Any = None) -> Bound:
    """``x.float()``."""
    return _cast(input, torch.float32, "float()")


def bind_to_dtype(dtype: torch.dtype, call: str) -> Callable[..., Bound]:
    """``x.long()``, ``x.int()``, ``x.bool()``."""

    def bind(input: Any, *, memory_format: Any = None) -> Bound:
        return _cast(input, dtype, call)

    return bind


def bind_type_as(input: Any, other: Any) -> Bound:
    """``x.type_as(other)``."""
    return _cast(input, dtype_of(other), "type_as()")


def bind_to(input: Any, *args: Any, **kwargs: Any) -> Bound:
    """``x.to(dtype)``, ``x.to(other)``, and ``x.to(device)`` to the device where ``x`` is."""
    target = kwargs.get("dtype", kwargs.get("other", args[0] if args else None))
    dtype = target if isinstance(target, torch.dtype) else dtype_of(target)
    given = [*args, *(value for key, value in kwargs.items() if key == "device")]
    devices = [torch.device(v) for v in given if isinstance(v, (str, torch.device))]
    indices = [v for v in given if isinstance(v, int) and not isinstance(v, bool)]
    if indices or not all(_is_there(input, device) for device in devices):
        raise NotImplementedError(
            "to(device) moves data between devices, which no operator does; move the model and "
            "its inputs before the call, and leave it out of forward"
        )
    if dtype is None:
        dtypes = [v for v in args if isinstance(v, torch.dtype)]
        dtype = dtypes[0] if dtypes else dtype_of(input)
    return _cast(input, dtype, "to()")


def _is_there(input: Any, device: torch.device) -> bool:
    """Whether the tensor of a node was on the device when the model was recorded."""
    present = input.meta.get("device") if isinstance(input, fx.Node) else None
    if present is None:
        return False
    return bool(present.type == device.type and device.index in (None, present.index))


def _cast(input: Any, dtype: torch.dtype | None, call: str) -> Bound:
    own = dtype_of(input)
    if own == dtype == torch.float32:
        return Bound((input,), {"kind": KIND, "memory_format": None})
    if own in _PLAIN and dtype in (*_PLAIN, torch.float32):
        name = str(dtype).removeprefix("torch.")
        return Bound((input,), {"kind": CAST, "memory_format": None, "dtype": name})
    raise NotImplementedError(
        f"{call} makes {dtype} of {own}: a real change of the dtype has no integer form. Masks and "
        "integers can become other integers and float32, and float32 stays float32; cast before "
        "the model or after it"
    )


def dtype_of(value: Any) -> torch.dtype | None:
    """The dtype of a node, a tensor, or a value of a graph in HBIR."""
    dtype = value.meta.get("dtype") if isinstance(value, fx.Node) else getattr(value, "dtype", None)
    if isinstance(dtype, ir.DataType):
        dtype = getattr(torch, str(dtype.numpy()), None)
    if dtype is None and hasattr(value, "data"):  # a constant of the lowering
        dtype = value.data.dtype
    return dtype if isinstance(dtype, torch.dtype) else None
