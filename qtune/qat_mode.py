"""Facade: the QAT mode under the toolchain's path."""

from qtune.modes import QATMode, get_qat_mode, set_qat_mode

__all__ = ["QATMode", "get_qat_mode", "set_qat_mode"]
