"""Operators of the family activation."""
