"""Import of ONNX files of other tools, float or with QuantizeLinear and DequantizeLinear nodes."""

from qtune.hbir.onnx_import.load import import_onnx

__all__ = ["import_onnx"]
