"""Facade: qconfigs under the toolchain's path."""

from qtune.qconfig.qconfig import QConfig, get_default_qconfig, get_qconfig

__all__ = ["QConfig", "get_default_qconfig", "get_qconfig"]
