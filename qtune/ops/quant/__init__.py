"""Operators of the family quant."""
