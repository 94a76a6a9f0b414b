"""Facade: the QAT mode and the consistency level under the toolchain's path."""

from qtune.modes import ConsistencyStrategy, FuseMode, QATMode, get_qat_mode, qat_mode, set_qat_mode

__all__ = [
    "ConsistencyStrategy",
    "FuseMode",
    "QATMode",
    "get_qat_mode",
    "qat_mode",
    "set_qat_mode",
]
