"""Capture: a float model becomes a graph of its calls (architecture.md decision 2)."""

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs, as_example_list, as_inputs
from qtune.capture.leaf import is_leaf
from qtune.capture.recorder import capture
from qtune.capture.symbolic import capture_symbolic

__all__ = [
    "GraphModel",
    "Inputs",
    "as_example_list",
    "as_inputs",
    "capture",
    "capture_symbolic",
    "is_leaf",
]
