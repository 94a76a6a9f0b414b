"""Facades: names that scripts import from here."""
