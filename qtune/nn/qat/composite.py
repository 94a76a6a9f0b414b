"""``Composite``: stands where an operator was that ``prepare`` replaced by several others."""

from __future__ import annotations

from typing import Any

from torch import nn

from qtune.errors import PrepareError
from qtune.nn.qat.op import QATOp
from qtune.ops.activation.segment_module import TABLE_OPTIONS, are_knobs, segment_options
from qtune.ops.spec import Rule

_KNOBS = "_kwargs"


class Composite(nn.Module):
    """Holds the parts of a decomposed operator and the parameters that it had.

    It is not called: the graph calls the parts, which are its children.

    An attribute ``<part>_kwargs`` (``rsqrt_kwargs`` of a layer norm, ``exp_kwargs`` and
    ``reciprocal_kwargs`` of a softmax) holds the arguments of ``SegmentLUT`` for the table of that
    part, for example ``{"auto_divide_strategy": "curvature"}``. It may be set here until
    ``pre_export``, or on the float module before ``prepare``.
    """

    def __init__(self, op: str, name: str, float_type: str) -> None:
        super().__init__()
        self.op = op
        self.name = name
        self.float_type = float_type

    def __setattr__(self, name: str, value: Any) -> None:
        if name.endswith(_KNOBS):
            self._give_knobs(name, value)
        super().__setattr__(name, value)

    def take_knobs(self, module: nn.Module) -> None:
        """Take over the ``<part>_kwargs`` that the float ``module`` has.

        An attribute of that kind for a part that isn't there is a mistake, unless its value shows
        that it means something else.
        """
        for name, value in list(vars(module).items()):
            is_part = name.removesuffix(_KNOBS) in self.table_parts()
            if name.endswith(_KNOBS) and (is_part or (value and are_knobs(value))):
                setattr(self, name, value)

    def table_parts(self) -> dict[str, QATOp]:
        """The parts that become look-up tables."""
        parts = ((name, part) for name, part in self.named_children() if isinstance(part, QATOp))
        return {name: part for name, part in parts if part.spec.rule is Rule.TABLE}

    def _give_knobs(self, name: str, value: Any) -> None:
        where = f"{self.name}.{name}"
        parts = self.table_parts()
        part = parts.get(name.removesuffix(_KNOBS))
        if part is None:
            known = ", ".join(f"{part}{_KNOBS}" for part in parts) or "none: it has no table"
            raise PrepareError(f"{where}: there is no such table; possible are {known}")
        if hasattr(part, "emit_table"):
            raise PrepareError(f"{where}: the table is made already; set it before pre_export")
        setattr(part, TABLE_OPTIONS, segment_options(where, value))

    def extra_repr(self) -> str:
        """The operator that the parts stand for."""
        return f"op={self.op}"
