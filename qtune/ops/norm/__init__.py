"""Operators of the family norm."""
