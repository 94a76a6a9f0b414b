"""One side of a comparison as a NumPy array, with its dtype's name, its codes and scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qtune.errors import ArgumentError, kind_of
from qtune.nn.quantized.qtensor import QTensor

Array = NDArray[Any]
INTEGERS = "biu"
_KINDS = "biufc"
_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


@dataclass(frozen=True, slots=True)
class Scales:
    """Scales of a grid: one number, or one for each channel along ``axis``."""

    values: tuple[float, ...]
    axis: int | None = None

    def along(self, shape: tuple[int, ...], where: str) -> Array:
        """float64, in a shape that broadcasts to ``shape``."""
        numbers = np.asarray(self.values, np.float64)
        if self.axis is None:
            return numbers.reshape(())
        axis = self.axis + len(shape) if self.axis < 0 else self.axis
        if not 0 <= axis < len(shape) or shape[axis] != len(numbers):
            raise ArgumentError(
                f"{where}: the shape is {shape}, but scale holds {len(numbers)} numbers along axis "
                f"{self.axis}; give one for each channel, and the axis of the channels"
            )
        return numbers.reshape(-1, *[1] * (len(shape) - axis - 1))


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of one tensor, array or number.

    ``values``: bools, integers as they are, real and complex numbers in double precision or more.
    ``dtype``: the name of what came. ``is_number``: a number of Python, which has no dtype. A
    QTensor also has ``codes`` and ``scales``; its ``values`` are the real numbers.
    """

    values: Array
    dtype: str
    is_number: bool = False
    codes: Array | None = None
    scales: Scales | None = None

    @property
    def kind(self) -> str:
        """NumPy's letter: b, i, u, f or c."""
        return str(self.values.dtype.kind)

    def __str__(self) -> str:
        return f"{self.dtype} {self.values.shape}"


def elements(value: Any, where: str) -> Elements:
    """Read ``value``; ``ArgumentError`` naming ``where`` for what has no elements to compare."""
    if isinstance(value, QTensor):
        return _of_qtensor(value)
    if isinstance(value, Tensor):
        return _of_tensor(value, where)
    if isinstance(value, np.ndarray | np.generic):
        return _of_array(np.asarray(_unmasked(value, where)), where)
    if isinstance(value, bool | int | float | complex):
        array = np.asarray(value)
        if array.dtype.kind in _KINDS:
            return Elements(array, type(value).__name__, is_number=True)
        raise ArgumentError(f"{where}: the number {value} needs more than 64 bits")
    raise ArgumentError(
        f"{where}: expected a tensor, an array, a number, or a dict or sequence of these, but got "
        f"{kind_of(value)}"
    )


def _of_qtensor(value: QTensor) -> Elements:
    codes = value.int_repr().cpu().numpy()
    scales = Scales(value.scales, value.ch_axis if value.ch_axis >= 0 else None)
    real = codes.astype(np.float32) * scales.along(codes.shape, "a QTensor").astype(np.float32)
    return Elements(real.astype(np.float64), str(value.dtype), codes=codes, scales=scales)


def _of_tensor(value: Tensor, where: str) -> Elements:
    name = str(value.dtype).removeprefix("torch.")
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        kind = "quantized by torch" if value.is_quantized else f"{value.layout}"
        kind = "on the device meta" if value.device.type == "meta" else kind
        raise ArgumentError(
            f"{where}: a tensor {kind} can't be compared by element; pass .to_dense(), "
            ".dequantize() or .int_repr(), a tensor with values"
        )
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = plain.to(torch.complex128)
    elif plain.is_floating_point():  # NumPy has no bfloat16
        plain = plain.to(torch.float64)
    return Elements(plain.numpy(), name)


def _of_array(value: Array, where: str) -> Elements:
    kind, name = value.dtype.kind, value.dtype.name
    if name == "bfloat16":
        return Elements(value.astype(np.float64), name)
    if kind not in _KINDS:
        raise ArgumentError(
            f"{where}: expected numbers or bools but got an array of dtype {value.dtype}"
        )
    if kind in INTEGERS:  # in the byte order of this machine
        return Elements(value.astype(value.dtype.newbyteorder("="), copy=False), name)
    return Elements(value.astype(np.result_type(value.dtype, np.float64)), name)


def _unmasked(value: Any, where: str) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{where}: a masked array has no value at masked places; fill it first")
    return value


def type_difference(got: Elements, expected: Elements) -> tuple[str, str] | None:
    """What to call both sides where shape, dtype or scales differ, else ``None``.

    A number of Python has no dtype: it meets any of its own kind, and ``int`` and ``float`` also
    the wider ones. A QTensor stands for float32 values beside anything but a QTensor.
    """
    same_shape = got.values.shape == expected.values.shape
    same_dtype = _same_dtype(got, expected)
    if same_shape and same_dtype:
        return _scale_difference(got, expected)
    if same_dtype:
        return f"shape {got.values.shape}", f"shape {expected.values.shape}"
    return (got.dtype, expected.dtype) if same_shape else (str(got), str(expected))


def _same_dtype(got: Elements, expected: Elements) -> bool:
    if got.is_number or expected.is_number:
        return _number_fits(got, expected)
    if (got.codes is None) != (expected.codes is None):
        other = expected if expected.codes is None else got
        return other.dtype == "float32"
    return got.dtype == expected.dtype


def _number_fits(got: Elements, expected: Elements) -> bool:
    a, b = _RANK[got.kind], _RANK[expected.kind]
    if 0 in (a, b):
        return a == b
    if got.is_number and expected.is_number:
        return True
    return a <= b if got.is_number else b <= a


def _scale_difference(got: Elements, expected: Elements) -> tuple[str, str] | None:
    if got.scales is None or expected.scales is None or got.scales == expected.scales:
        return None
    a, b = got.scales, expected.scales
    if a.axis != b.axis:
        return _axis_text(a), _axis_text(b)
    pairs = enumerate(zip(a.values, b.values, strict=True))
    index = next(i for i, (one, other) in pairs if one != other)
    channel = "" if a.axis is None else f" of channel {index}"
    return f"scale {a.values[index]:.9g}{channel}", f"scale {b.values[index]:.9g}{channel}"


def _axis_text(scales: Scales) -> str:
    return "one scale" if scales.axis is None else f"scales along axis {scales.axis}"
