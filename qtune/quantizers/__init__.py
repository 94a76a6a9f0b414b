"""Observers, fake-quantize and its states (numerics.md section 5)."""
