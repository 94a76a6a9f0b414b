"""Facade for the toolchain's import path."""
