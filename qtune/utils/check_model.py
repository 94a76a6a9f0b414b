"""Facade: ``check_qat_model`` under the toolchain's import path."""

from qtune.check.qat_model import check_qat_model

__all__ = ["check_qat_model"]
