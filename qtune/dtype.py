"""Quantized dtypes as small value objects. No torch is needed to use them."""

from __future__ import annotations

from dataclasses import dataclass

from qtune.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class QuantDType:
    """A signed two's complement grid without zero point (numerics.md section 1).

    >>> qint8.qmin, qint8.qmax, qint8.divisor
    (-128, 127, 127.5)
    """

    name: str
    bits: int

    @property
    def qmin(self) -> int:
        """Smallest code."""
        return -(1 << (self.bits - 1))

    @property
    def qmax(self) -> int:
        """Largest code."""
        return (1 << (self.bits - 1)) - 1

    @property
    def divisor(self) -> float:
        """What an observed absmax is divided by: ``(qmax - qmin) / 2``."""
        return (self.qmax - self.qmin) / 2

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str | tuple[object, ...]:
        return (quant_dtype, (self.name,))


@dataclass(frozen=True, slots=True)
class FloatDType:
    """A floating-point format that a march computes in, without scale (numerics.md section 7)."""

    name: str
    bits: int

    def __str__(self) -> str:
        return f"torch.{self.name}"

    def __repr__(self) -> str:
        return self.name


qint4 = QuantDType("qint4", 4)
qint8 = QuantDType("qint8", 8)
qint16 = QuantDType("qint16", 16)
qint32 = QuantDType("qint32", 32)

float16 = FloatDType("float16", 16)

ALL_DTYPES = (qint4, qint8, qint16, qint32)


def quant_dtype(value: object, *others: str) -> QuantDType:
    """Return the dtype for a ``QuantDType``, its name, or torch's dtype of the same name.

    ``others``: what else the caller takes, for the error alone.

    >>> quant_dtype("qint8") is qint8
    True
    """
    if isinstance(value, QuantDType):
        return value
    name = str(value).removeprefix("torch.")
    for dtype in ALL_DTYPES:
        if dtype.name == name:
            return dtype
    known = ", ".join(d.name for d in ALL_DTYPES)
    wanted = ", or ".join((f"a quantized dtype ({known})", *others))
    raise ArgumentError(f"expected {wanted} but got {value!r} (type={type(value).__name__})")


def is_float16(value: object) -> bool:
    """Whether ``value`` means float16: our own, torch's, or its name.

    >>> is_float16("torch.float16"), is_float16(qint16)
    (True, False)
    """
    return str(value).removeprefix("torch.") in (float16.name, "half")
