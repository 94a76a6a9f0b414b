"""Which integer operators a GEMM has: by the widths of its operands, and by what comes after.

The HBIR operator is called ``<base><variant><form>``, for example ``QConv16x8Add``. ONNX function
bodies can't branch, so each is an operator of its own. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from qtune.dtype import QuantDType

FORMS = ("", "Add", "Acc", "AddAcc")
"""Requantized, without and with a fused addend; then the int32 accumulator itself, likewise."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Bits of both operands, the suffix of the operator's name, and the accumulator's bits."""

    suffix: str
    x_bits: int
    w_bits: int

    @property
    def accumulator_bits(self) -> int:
        """32, or 48 for int16 x int16 (numerics.md section 2.1)."""
        return 48 if self.x_bits == self.w_bits == 16 else 32

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that exist; the 48-bit accumulator has no int32 output."""
        return FORMS if self.accumulator_bits == 32 else FORMS[:2]


VARIANTS = (
    Variant("", 8, 8),
    Variant("16x8", 16, 8),
    Variant("8x16", 8, 16),
    Variant("16x16", 16, 16),
)


def variant(x: QuantDType, w: QuantDType) -> Variant:
    """The variant for operands of dtypes ``x`` and ``w``; qint4 is held like qint8."""
    widths = (max(x.bits, 8), max(w.bits, 8))
    return next(v for v in VARIANTS if (v.x_bits, v.w_bits) == widths)
