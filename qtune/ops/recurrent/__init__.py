"""Recurrent layers: cells of linear, add, tables and mul, unrolled over the example's steps."""
