"""Facade: the structure checks under the toolchain's import path."""

from qtune.check.qat_model import check_qat_model
from qtune.quantization.deploy import check_model

__all__ = ["check_model", "check_qat_model"]
