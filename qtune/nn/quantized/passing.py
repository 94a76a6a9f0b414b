"""``FusedAway``: where an operator was that its fused group computes under another name."""

from __future__ import annotations

from typing import Any

from torch import nn


class FusedAway(nn.Identity):
    """Hands its input on to the last operator of the group, ``group``.

    So a part of the model whose forward calls layers only still runs when it is taken out. The
    methods of a ``FloatFunctional`` are not there: two operands can't be handed on.
    """

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}: the operator that was here is "
                f"computed by {self.__dict__.get('group')}. Call the whole converted model, or "
                "prepare in eager mode (prepare_qat) to take parts of it"
            ) from None

    def extra_repr(self) -> str:
        """The operator that computes it."""
        return f"group={self.group}"
