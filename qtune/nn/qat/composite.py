"""``Composite``: stands where an operator was that ``prepare`` replaced by several others."""

from __future__ import annotations

from torch import nn


class Composite(nn.Module):
    """Holds the parts of a decomposed operator and the parameters that it had.

    It is not called: the graph calls the parts, which are its children.
    """

    def __init__(self, op: str, name: str, float_type: str) -> None:
        super().__init__()
        self.op = op
        self.name = name
        self.float_type = float_type

    def extra_repr(self) -> str:
        """The operator that the parts stand for."""
        return f"op={self.op}"
