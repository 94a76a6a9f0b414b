"""Operators of the family gemm."""
