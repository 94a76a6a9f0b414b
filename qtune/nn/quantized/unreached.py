"""What stands in a converted model for a layer that had no data before it was converted."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from qtune.errors import NotCalibratedError
from qtune.ops.elementwise.float_functional import FunctionalMethods


class Unreached(nn.Module):
    """Raises ``NotCalibratedError`` when it is called: without a scale it can't run on integers.

    ``name``: path of the layer in the model.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse the call."""
        raise self._refusal()

    def _refusal(self) -> NotCalibratedError:
        return NotCalibratedError(
            f"{self.name}: this layer never ran in calibration or training, so it has no scale and "
            "was converted to none; calibrate the prepared model on data that reaches it, then "
            "convert again"
        )

    def extra_repr(self) -> str:
        """Name in the model."""
        return f"name={self.name}"


class UnreachedFunctional(FunctionalMethods, Unreached):
    """An :class:`Unreached` with the methods of a ``FloatFunctional``."""

    def _sum(self, x: Any, y: Any) -> NoReturn:
        raise self._refusal()

    def _run(self, *args: Any) -> NoReturn:
        raise self._refusal()
