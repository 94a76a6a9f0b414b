"""Operators of the family resize."""
