"""HBIR: the model between torch and integers, an ONNX graph with the domain ``qtune``."""
