"""The dtype of a port as users write it: a grid, or float."""

from __future__ import annotations

import enum

import torch

from qtune.dtype import QuantDType, quant_dtype
from qtune.errors import ArgumentError, QconfigError


class Float(enum.Enum):
    """What is not quantized."""

    PORT = "torch.float32"
    """This port is float: an output that keeps full precision, an input or weight left alone."""
    OPERATOR = "float"
    """The whole operator stays float."""

    def __str__(self) -> str:
        return self.value


PortDType = QuantDType | Float

_FLOAT_NAMES = ("torch.float32", "float32", "qint32")
_LATER = ("torch.float16", "float16", "torch.bfloat16", "bfloat16")


def port_dtype(value: object, where: str) -> PortDType:
    """Read a dtype: a ``QuantDType``, torch's twin or its name, ``torch.float32`` or ``None``.

    ``qint32`` is the high-precision output of a GEMM, which is float for its consumers.
    Raises ``QconfigError`` that begins with ``where``; float16 is not done yet.
    """
    if value is None or str(value) in _FLOAT_NAMES:
        return Float.PORT
    if str(value) in _LATER:
        raise NotImplementedError(f"{where}: {value} (FakeCast) is not done yet")
    try:
        return quant_dtype(value)
    except ArgumentError as error:
        raise QconfigError(f"{where}: {error}; or torch.float32 or None for float") from None


def is_dtype(value: object) -> bool:
    """Whether ``value`` is meant as one dtype (and not as a number or a mapping)."""
    return value is None or isinstance(value, (str, QuantDType, torch.dtype))
