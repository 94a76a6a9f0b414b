"""Operators of the family elementwise."""
