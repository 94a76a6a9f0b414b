"""The dtype of a port as users write it: a grid, or float."""

from __future__ import annotations

import enum

import torch

from qtune.dtype import FloatDType, QuantDType, float16, is_float16, quant_dtype
from qtune.errors import ArgumentError, QconfigError


class Float(enum.Enum):
    """What is not quantized."""

    PORT = "torch.float32"
    """This port is float: an output that keeps full precision, an input or weight left alone."""
    OPERATOR = "float"
    """The whole operator stays float."""

    def __str__(self) -> str:
        return self.value


PortDType = QuantDType | FloatDType | Float

_FLOAT_NAMES = ("torch.float32", "float32", "qint32")


Numeric = QuantDType | FloatDType
"""What a value can be inside the quantized region."""


def port_dtype(value: object, where: str) -> PortDType:
    """Read a dtype: a ``QuantDType``, torch's twin or its name, ``torch.float16``,
    ``torch.float32`` or ``None``.

    ``qint32`` is the high-precision output of a GEMM, which is float for its consumers.
    Raises ``QconfigError`` that begins with ``where``.
    """
    if value is None or str(value) in _FLOAT_NAMES:
        return Float.PORT
    if is_float16(value):
        return float16
    try:
        return quant_dtype(value, "torch.float16", "torch.float32 or None for float")
    except ArgumentError as error:
        raise QconfigError(f"{where}: {error}") from None


def is_dtype(value: object) -> bool:
    """Whether ``value`` is meant as one dtype (and not as a number or a mapping)."""
    return value is None or isinstance(value, (str, QuantDType, FloatDType, torch.dtype))
