"""What ``tune_bad_case`` returns: tables to read, and a rule for ``prepare``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qtune.dtype import qint8, qint16
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.qconfig.sensitivity import KINDS, Entry, PortRaiser, RaisedPorts, SensitiveOps

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "tune_bad_case"


@dataclass(frozen=True, slots=True)
class TunedTables(Mapping[str, list[SensitivityTable]], PortRaiser):
    """Output name -> one table per bad case, with a value in ``tuned_cumulative_<metric>`` where a
    stub was raised.

    Read it as a dict. As a template of ``QconfigSetter``, or as the setter of ``prepare``, it gives
    qint16 to every stub that any of the tables raised. ``reached``: per output and case whether the
    threshold was. ``skipped``: stubs (``conv1 weight``) that were left alone, and why. True if
    every threshold was reached.
    """

    tables: dict[str, list[SensitivityTable]]
    reached: dict[str, list[bool]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[Entry, ...]:
        """The raised stubs as (operator, port), over all outputs and cases, best place first."""
        return self._chosen().entries

    def raised(self) -> RaisedPorts:
        """qint16 for the raised stubs."""
        return self._chosen().raised(qint16, may_be_empty=True)

    def _chosen(self) -> SensitiveOps:
        return SensitiveOps.of(self.tables, None, SOURCE, KINDS["both"], qint8)

    def __getitem__(self, output: str) -> list[SensitivityTable]:
        return self.tables[output]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def __bool__(self) -> bool:
        return all(all(cases) for cases in self.reached.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "tables": {output: [t.to_dict() for t in found] for output, found in self.items()},
            "reached": {output: list(cases) for output, cases in self.reached.items()},
            "skipped": dict(self.skipped),
            "ports": [list(entry) for entry in self.ports],
        }

    def to_pandas(self) -> pd.DataFrame:
        """All tables below one another, with the columns ``output`` and ``case`` before them."""
        import pandas as pd

        frames = []
        for table in (table for found in self.values() for table in found):
            frame = table.to_pandas()
            frame.insert(0, "case", table.case)
            frame.insert(0, "output", table.output_name)
            frames.append(frame)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def __str__(self) -> str:
        parts = [
            f"output {table.output_name!r}, case {table.case}: threshold "
            f"{'reached' if reached else 'not reached'}\n{table}"
            for output, found in self.items()
            for table, reached in zip(found, self.reached[output], strict=True)
        ]
        return "\n\n".join([*parts, *skipped_lines(self.skipped)])


def skipped_lines(skipped: Mapping[str, str]) -> list[str]:
    """The stubs that were left alone, as one text; none where there is nothing to say."""
    lines = [f"  {name}: {reason}" for name, reason in skipped.items()]
    return ["\n".join(["Not raised:", *lines])] if lines else []
