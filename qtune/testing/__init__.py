"""Assertions on quantized models; usable without pytest, re-exported by ``pytest_qtune``."""
