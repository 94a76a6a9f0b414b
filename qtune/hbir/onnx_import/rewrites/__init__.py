"""Rewrites of imported ONNX operators whose form differs from ours: one file each."""
