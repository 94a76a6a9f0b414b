"""Integer and fake-quant arithmetic in NumPy: the first oracle, one function per rule.

It reads like numerics.md. Codes are ``int64`` arrays, scales ``float32``, multipliers Python
floats. Nothing here needs torch.
"""
