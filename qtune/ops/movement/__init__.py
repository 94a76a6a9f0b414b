"""Operators of the family movement."""
