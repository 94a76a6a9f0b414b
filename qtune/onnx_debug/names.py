"""Unique names, by the rule of the import: nodes of a calibrated model and of its HBIR join."""

from qtune.hbir.onnx_import.names import free_name, with_unique_names

__all__ = ["free_name", "with_unique_names"]
