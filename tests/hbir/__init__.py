"""Tests of qtune.hbir."""
