"""Facade: the ONNX export under the toolchain's import path."""

from qtune.quantization.onnx_file import export_to_onnx

__all__ = ["export_to_onnx"]
