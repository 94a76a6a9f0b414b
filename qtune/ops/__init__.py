"""The operator registry: one operator, one file (see ``spec.py``)."""
