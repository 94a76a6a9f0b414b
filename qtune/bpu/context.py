"""The builder of integer graphs: what an operator's ``convert`` is handed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir

from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.hbir.builder import META_RANGE, GraphBuilder, mark_codes
from qtune.ops.kernel import FloatValue, QValue
from qtune.ops.quant.emit import emit_dequantize, emit_quantize, emit_requantize

STAYS_FLOAT = "stays float"
"""Kind of the note for an operator that is not converted."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the conversion report: what ``kind`` of thing happened to which operator."""

    op: str
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The note as plain values."""
        return asdict(self)


class Conversion(GraphBuilder):
    """A graph of integer operators under construction; implements ``ConvertContext``.

    ``level``: the consistency level (numerics.md section 4). Any level requantizes with 31 bits;
    ``high_precision_qpp``, which level 0 sets, takes the requantize out of the GEMM as well.
    """

    def __init__(
        self,
        name: str,
        march: str,
        high_precision_qpp: bool = False,
        level: int | None = None,
        is_imported: bool = False,
    ) -> None:
        super().__init__(name)
        self.march = march
        self.level = level
        self.is_imported = is_imported
        self.high_precision_qpp = high_precision_qpp or level is not None
        self.fuses_requantize = not high_precision_qpp
        self.notes: list[Note] = []
        self.on_quantize: Callable[[ir.Value], None] | None = None

    @contextmanager
    def precisely(self, wanted: bool) -> Iterator[None]:
        """Within the block, requantize as on consistency level 0 where ``wanted``."""
        before = self.high_precision_qpp, self.fuses_requantize
        if wanted:
            self.high_precision_qpp, self.fuses_requantize = True, False
        try:
            yield
        finally:
            self.high_precision_qpp, self.fuses_requantize = before

    def report(self, kind: str, message: str, **details: Any) -> None:
        """Note something under the current operator's name."""
        self.notes.append(Note(self.origin.op, kind, message, details))

    def quantize(self, value: ir.Value, scale: float, dtype: QuantDType) -> QValue:
        """Emit Quantize of a float value; an imported file may have CPU operators anywhere."""
        if self.on_quantize is not None and not self.is_imported:
            self.on_quantize(value)
        return self.track(emit_quantize(self, value, scale, dtype))

    def dequantize(self, operand: QValue) -> FloatValue:
        """Emit Dequantize."""
        return emit_dequantize(self, operand)

    def requantize(self, operand: QValue, scale: float, dtype: QuantDType) -> QValue:
        """Emit a Requantize of codes to another scale or dtype (no node if both are equal)."""
        return self.track(emit_requantize(self, operand, scale, dtype))

    def track(self, codes: QValue) -> QValue:
        """Note dtype, scale and range of codes on their value, for the planner and the file."""
        value: ir.Value = codes.value
        before = dict(value.metadata_props)
        mark_codes(value, str(codes.dtype), codes.scale)
        if any(before.get(key, text) != text for key, text in value.metadata_props.items()):
            raise ConvertError(
                f"{self.origin.op}: the codes {value.name!r} are given a second scale or dtype "
                f"({before} and {dict(value.metadata_props)}); the operator must emit a node"
            )
        if codes.code_min is not None or codes.code_max is not None:
            low = codes.dtype.qmin if codes.code_min is None else codes.code_min
            high = codes.dtype.qmax if codes.code_max is None else codes.code_max
            value.metadata_props[META_RANGE] = f"{low},{high}"
        return codes
