"""Observers, fake-quantize and its states (numerics.md section 5)."""

from qtune.quantizers.fake_cast import FakeCast

__all__ = ["FakeCast"]
