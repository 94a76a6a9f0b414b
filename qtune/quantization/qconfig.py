"""Facade: qconfigs under the toolchain's path, the ready-made ones made when first asked for."""

from typing import Any

from qtune.qconfig.predefined import (
    RECIPES,
    get_default_calib_qconfig,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    predefined,
)
from qtune.qconfig.qconfig import QConfig, get_default_qconfig, get_qconfig

__all__ = [
    *RECIPES,  # served by __getattr__
    "QConfig",
    "get_default_calib_qconfig",
    "get_default_qat_out_qconfig",
    "get_default_qat_qconfig",
    "get_default_qconfig",
    "get_qconfig",
]


def __getattr__(name: str) -> Any:
    if name in RECIPES:
        return predefined(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
