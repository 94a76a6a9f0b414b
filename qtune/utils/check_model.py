"""Facade: the structure checks under the toolchain's import path."""

from qtune.check.march import check_model
from qtune.check.qat_model import check_qat_model

__all__ = ["check_model", "check_qat_model"]
