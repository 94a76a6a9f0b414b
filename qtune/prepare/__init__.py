"""The steps from a captured graph to a calibration / QAT model; ``pipeline`` runs them.

The public calls are in ``qtune.quantization``.
"""
