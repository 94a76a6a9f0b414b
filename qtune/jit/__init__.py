"""Facade: TorchScript files and devices, under the toolchain's import path."""

from qtune.quantization.jit import load, save, to_device

__all__ = ["load", "save", "to_device"]
