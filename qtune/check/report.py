"""``CheckReport``: what ``check_qat_model`` found, as values and as ``model_check_result.txt``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtune.check.border import DEQUANT
from qtune.nn.prepared import UnfusedOps
from qtune.report.files import write_text
from qtune.report.table import text_table

if TYPE_CHECKING:
    import pandas as pd

FILE = "model_check_result.txt"
FLOAT32 = "torch.float32"
NO_QCONFIG = "qconfig = None"
AVERAGING = 0.01
"""The documents' ``averaging_constant``; another one is worth a message."""
OUTPUT_COLUMNS = ("Module Name", "Module Type", "Input dtype", "out dtype", "ch_axis", "observer")
WEIGHT_COLUMNS = ("Module Name", "Module Type", "weight dtype", "ch_axis", "observer")
AVERAGING_COLUMN = "averaging_constant"
DTYPE_COLUMNS = ("dtype", "input", "output")
MESSAGE_COLUMNS = ("Module Name", "Module Type", "Msg")
CALL_COLUMNS = ("name", "called times")
_LOW = "qint8"


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """How one operator's result is quantized.

    ``stub``: ``quant``, ``dequant`` or ``""``. ``averaging_constant``: of the observer, ``None``
    where there is none or the scale is fixed.
    """

    name: str
    type: str
    input_dtypes: tuple[str, ...]
    out_dtype: str
    ch_axis: str
    observer: str
    averaging_constant: float | None = None
    stub: str = ""

    def row(self) -> tuple[str, ...]:
        """The cells below ``OUTPUT_COLUMNS``; several input dtypes as a list."""
        inputs = self.input_dtypes
        shown = inputs[0] if len(inputs) == 1 else str(list(inputs)) if inputs else ""
        return self.name, self.type, shown, self.out_dtype, self.ch_axis, self.observer


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """How one operator's weight is quantized."""

    name: str
    type: str
    dtype: str
    ch_axis: int
    observer: str
    averaging_constant: float | None = None

    def row(self) -> tuple[Any, ...]:
        """The cells below ``WEIGHT_COLUMNS``."""
        return self.name, self.type, self.dtype, self.ch_axis, self.observer


@dataclass(frozen=True, slots=True)
class Message:
    """Something to look at. ``normal``: in the file only, not on the screen."""

    name: str
    type: str
    text: str
    normal: bool = False

    def row(self) -> tuple[str, str, str]:
        """The cells below ``MESSAGE_COLUMNS``."""
        return self.name, self.type, self.text


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What ``check_qat_model`` found; true if nothing is shared, unused or left unfused.

    ``call_counts``: runs of every operator in one forward. ``types``: operator -> printed type.
    ``unobserved``: fake-quantizes that never saw data. ``calibrated``: whether any did.
    ``explanation``: how every dtype was decided.
    """

    unfused: tuple[UnfusedOps, ...]
    call_counts: Mapping[str, int]
    types: Mapping[str, str]
    outputs: tuple[OutputConfig, ...]
    weights: tuple[WeightConfig, ...]
    messages: tuple[Message, ...]
    float_ops: tuple[tuple[str, str, str], ...] = ()
    unobserved: tuple[str, ...] = ()
    calibrated: bool = False
    explanation: str = ""

    def __bool__(self) -> bool:
        return not self.unfused and all(count == 1 for count in self.call_counts.values())

    @property
    def shared(self) -> dict[str, int]:
        """Operators that run more than once."""
        return {name: count for name, count in self.call_counts.items() if count > 1}

    @property
    def unused(self) -> list[str]:
        """Operators and layers that never run."""
        return [name for name, count in self.call_counts.items() if count == 0]

    @property
    def high_precision(self) -> dict[str, bool]:
        """DeQuantStub -> whether what it takes is more precise than qint8."""
        stubs = (row for row in self.outputs if row.stub == DEQUANT)
        return {row.name: _LOW not in row.input_dtypes for row in stubs}

    def dtypes(self) -> dict[str, tuple[int, int]]:
        """dtype -> how many inputs and how many results of operators have it."""
        inputs = Counter(dtype for row in self.outputs for dtype in row.input_dtypes)
        results = Counter(row.out_dtype for row in self.outputs)
        return {d: (inputs[d], results[d]) for d in sorted(set(inputs) | set(results))}

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return asdict(self)

    def to_pandas(self) -> pd.DataFrame:
        """The output configuration as a data frame."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.outputs])

    def __str__(self) -> str:
        return "\n\n".join(self._sections()) + "\n"

    def structure(self) -> str:
        """What is odd in the structure: unfused patterns, modules that do not run once."""
        odd = {name: count for name, count in self.call_counts.items() if count != 1}
        return "\n\n".join((*self._unfused_text(), *self._calls_text(odd)))

    def abnormal(self) -> str:
        """Only what asks for a look: the odd structure, unexpected qconfigs."""
        odd = [message for message in self.messages if not message.normal]
        parts = [self.structure(), message_table(odd) if odd else ""]
        return "\n\n".join(filter(None, parts))

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model_check_result.txt`` into ``folder``."""
        write_text(Path(folder) / FILE, str(self))

    def _sections(self) -> Iterator[str]:
        yield from self._unfused_text()
        if self.unused or self.shared:
            yield from self._calls_text(self.call_counts)
        else:
            yield "All modules in the model run exactly once."
        yield output_table(self.outputs)
        if self.weights:
            yield weight_table(self.weights)
        rows = [(dtype, *counts) for dtype, counts in self.dtypes().items()]
        yield "input/output dtype statistics:\n" + text_table(rows, DTYPE_COLUMNS)
        if self.messages:
            yield message_table(self.messages)
        if self.float_ops:
            table = text_table(self.float_ops, ("name", "op", "reason"))
            yield f"These operators stay float:\n{table}"
        if self.unobserved and self.calibrated:
            yield "Never calibrated: " + ", ".join(self.unobserved)
        if self.explanation:
            yield self.explanation

    def _unfused_text(self) -> Iterator[str]:
        for index, item in enumerate(self.unfused):
            rows = [(name, self.types.get(name, "")) for name in item.names]
            table = text_table(rows, ("name", "type"), style="plain")
            head = "" if index else "Fusable modules are listed below:\n"
            yield f"{head}{table}\n{item.reason}"

    def _calls_text(self, counts: Mapping[str, int]) -> Iterator[str]:
        if not counts:
            return
        table = text_table(list(counts.items()), CALL_COLUMNS, style="plain", numbers_right=True)
        yield f"Each module called times:\n{table}"
        if self.unused:
            yield f"Not called (unused?): {', '.join(self.unused)}"
        if self.shared:
            yield f"Shared (all calls have one scale): {', '.join(self.shared)}"


def output_table(rows: Sequence[OutputConfig]) -> str:
    """The third section, also of ``qconfig_info.txt``."""
    return _config_table("Each layer out qconfig:", OUTPUT_COLUMNS, rows)


def weight_table(rows: Sequence[WeightConfig]) -> str:
    """The fourth section."""
    return _config_table("Weight qconfig:", WEIGHT_COLUMNS, rows)


def message_table(rows: Sequence[Message]) -> str:
    """The fifth section."""
    head = "Please check if these OPs qconfigs are expected..\n"
    return head + text_table([row.row() for row in rows], MESSAGE_COLUMNS)


def _config_table(
    head: str, columns: tuple[str, ...], rows: Sequence[OutputConfig] | Sequence[WeightConfig]
) -> str:
    """With a column for the averaging constants where one is worth a message."""
    cells: list[tuple[Any, ...]] = [row.row() for row in rows]
    if any(unusual_averaging(row) for row in rows):
        columns = (*columns, AVERAGING_COLUMN)
        constants = (
            "" if r.averaging_constant is None else str(r.averaging_constant) for r in rows
        )
        cells = [(*row, constant) for row, constant in zip(cells, constants, strict=True)]
    return f"{head}\n{text_table(cells, columns, numbers_right=True)}"


def unusual_averaging(row: OutputConfig | WeightConfig) -> bool:
    """Whether the averaging constant is not the default one.

    Weights are known whole at every step, so 1 (no averaging) is usual for them, too.
    """
    usual = {None, AVERAGING, *((1.0,) if isinstance(row, WeightConfig) else ())}
    return row.averaging_constant not in usual
