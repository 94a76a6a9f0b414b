"""Modules of prepared and converted models."""
