"""Tests of qtune.bpu."""
