"""Facade: the QAT mode and the consistency level under the toolchain's path."""

from qtune.modes import ConsistencyStrategy, QATMode, get_qat_mode, set_qat_mode

__all__ = ["ConsistencyStrategy", "QATMode", "get_qat_mode", "set_qat_mode"]
