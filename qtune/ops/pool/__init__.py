"""Operators of the family pool."""
