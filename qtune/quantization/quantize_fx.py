"""Facade: the calls of the fx flow under the toolchain's import path."""

from qtune.quantization.convert import convert_fx
from qtune.quantization.prepare_qat import fuse_fx, prepare_calibration_fx, prepare_qat_fx

__all__ = ["convert_fx", "fuse_fx", "prepare_calibration_fx", "prepare_qat_fx"]
