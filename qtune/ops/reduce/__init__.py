"""Operators of the family reduce."""
