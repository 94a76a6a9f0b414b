"""What ``tune`` returns: the points worth having between all int8 and all int16."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qtune.dtype import qint16
from qtune.errors import ArgumentError, kind_of
from qtune.profiler.safe_load import load_safely
from qtune.profiler.tuned_tables import skipped_lines
from qtune.qconfig.sensitivity import Entry, PortRaiser, RaisedPorts, SensitiveOps
from qtune.report.files import write_text, write_with
from qtune.report.table import text_table

if TYPE_CHECKING:
    import pandas as pd

INT16_MACS, LATENCY, STUBS = "int16_macs", "latency_us", "stubs"
COSTS = (INT16_MACS, LATENCY, STUBS)
COLUMNS = (*COSTS, "mean", "worst", "raised")


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that raised stubs may cost; ``None`` is no limit.

    ``int16_macs``: share (0 to 1) of the multiply-adds of all GEMMs that run with at least one
    int16 operand. ``latency_us``: of the whole model by the static estimate (docs/compiler.md).
    ``stubs``: how many are raised.
    """

    int16_macs: float | None = None
    latency_us: float | None = None
    stubs: int | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if limit is not None and not (is_number and limit >= 0):
                raise ArgumentError(f"budget: {name} must be a number from 0 on, got {limit!r}")
        if self.int16_macs is not None and self.int16_macs > 1:
            raise ArgumentError(
                f"budget: int16_macs is a share of the multiply-adds, at most 1, got "
                f"{self.int16_macs}"
            )

    @classmethod
    def of(cls, value: Budget | Mapping[str, Any] | float | None) -> Budget:
        """A budget; a dict of its limits; a number alone is a share of int16 multiply-adds."""
        if isinstance(value, Budget):
            return value
        if value is None:
            return cls()
        if isinstance(value, Mapping):
            unknown = sorted(set(map(str, value)) - set(COSTS))
            if unknown:
                raise ArgumentError(
                    f"budget: no limit called {unknown[0]!r}; there are {', '.join(COSTS)}"
                )
            return cls(**value)
        return cls(int16_macs=value)

    @property
    def cost(self) -> str:
        """The cost that the front is drawn over: the one with a limit."""
        limited = [name for name in COSTS if getattr(self, name) is not None]
        return limited[0] if limited else INT16_MACS

    def allows(self, costs: TunePoint) -> bool:
        """Whether a point is within all limits; one without a latency is within no limit of it."""
        for name, limit in asdict(self).items():
            value = getattr(costs, name)
            if limit is not None and (value is None or value > limit):
                return False
        return True


@dataclass(frozen=True, slots=True)
class TunePoint(PortRaiser):
    """Some stubs raised to int16: what they cost, and the score over the whole data set.

    ``ports``: (operator, port). ``mean`` and ``worst``: over the batches; of a score of the whole
    model both are that score. ``latency_us``: ``None`` where it was not asked for. A template of
    ``QconfigSetter``, and a setter of ``prepare``.
    """

    ports: tuple[Entry, ...]
    int16_macs: float
    latency_us: float | None
    mean: float
    worst: float

    @property
    def stubs(self) -> int:
        """How many stubs are raised."""
        return len(self.ports)

    def raised(self) -> RaisedPorts:
        """qint16 for the stubs."""
        return SensitiveOps(self.ports, "tune").raised(qint16, may_be_empty=True)

    def to_dict(self) -> dict[str, Any]:
        """The columns of the table; ``ports`` as pairs."""
        return {
            **{name: getattr(self, name) for name in (*COSTS, "mean", "worst")},
            "ports": [list(entry) for entry in self.ports],
        }

    def _row(self, before: TunePoint | None) -> list[Any]:
        known = set() if before is None else set(before.ports)
        new = [f"+ {name} {port}" for name, port in self.ports if (name, port) not in known]
        gone = known - set(self.ports)
        lost = [
            f"- {name} {port}"
            for name, port in (before.ports if before else ())
            if (name, port) in gone
        ]
        cells = [getattr(self, name) for name in (*COSTS, "mean", "worst")]
        return [*cells, ", ".join([*new, *lost])]


@dataclass(frozen=True, slots=True)
class TuneFront:
    """The Pareto front of ``tune``: each point costs more than the one before, and scores better.

    ``points``: the front, cheapest first; the first one raises nothing. ``evaluated``: every point
    that was measured. ``score``: name of what was measured; ``ascending``: larger is better.
    ``cost``: what the front is drawn over (``int16_macs``, ``latency_us`` or ``stubs``).
    ``skipped``: stubs that are not raised, with the reason. ``notes``: what could not be had.
    True if something is gained.
    """

    points: tuple[TunePoint, ...]
    evaluated: tuple[TunePoint, ...]
    score: str
    ascending: bool
    cost: str
    march: str = ""
    skipped: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.points)

    def __bool__(self) -> bool:
        return len(self.points) > 1

    def best(self, budget: Budget | Mapping[str, Any] | float | None = None) -> TunePoint:
        """The point of the front with the best score within ``budget`` (default: of all).

        Raises ``ArgumentError`` if even the model as it is costs more.
        """
        limit = Budget.of(budget)
        within = [point for point in self.points if limit.allows(point)]
        if not within:
            raise ArgumentError(
                f"TuneFront.best: no point within {limit}; the cheapest costs "
                f"{_costs(self.points[0])}"
            )
        return within[-1]  # the front is monotone

    def cheapest(self, score: float) -> TunePoint:
        """The cheapest point whose mean score is at least as good as ``score``.

        Raises ``ArgumentError`` if there is none.
        """
        for point in self.points:
            if point.mean >= score if self.ascending else point.mean <= score:
                return point
        raise ArgumentError(
            f"TuneFront.cheapest: no point reaches {self.score} {score}; the best one is "
            f"{self.points[-1].mean}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["points"] = [point.to_dict() for point in self.points]
        found["evaluated"] = [point.to_dict() for point in self.evaluated]
        return found | {"skipped": dict(self.skipped), "notes": list(self.notes)}

    def to_pandas(self) -> pd.DataFrame:
        """One row per point: costs, scores, and the stubs it changes against the point before."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=list(COLUMNS))

    def rows(self) -> list[list[Any]]:
        """The cells of ``COLUMNS``."""
        before = (None, *self.points[:-1])
        return [p._row(b) for p, b in zip(self.points, before, strict=True)]

    def __str__(self) -> str:
        better = "larger" if self.ascending else "smaller"
        head = f"{self.score} ({better} is better) over {self.cost}, {self.march or 'no march'}"
        parts = [f"{head}\n{text_table(self.rows(), COLUMNS, style='plain')}"]
        return "\n\n".join([*parts, *skipped_lines(self.skipped), *self.notes])

    def save(self, stem: str | os.PathLike[str]) -> None:
        """Write ``<stem>.txt``, ``.csv`` and ``.pt``."""
        path = Path(stem)
        write_text(path.with_name(path.name + ".txt"), f"{self}\n")
        write_text(path.with_name(path.name + ".csv"), self.to_pandas().to_csv(index=False))
        write_with(path.with_name(path.name + ".pt"), lambda file: torch.save(self, file))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TuneFront:
        """The front of a ``.pt`` file, never unpickled unsafely.

        ``FileNotFoundError`` where there is none, ``ArgumentError`` for a file of something else,
        ``AnalysisError`` for one that can't be read.
        """
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist; tune(out_dir=...) writes such files")
        front = load_safely(Path(path))
        if not isinstance(front, cls):
            raise ArgumentError(f"{path} holds {kind_of(front)}, not a front of tune")
        return front


def front_of(points: list[TunePoint], cost: str, *, ascending: bool) -> tuple[TunePoint, ...]:
    """The points that no cheaper one equals or beats, cheapest first.

    Of equal cost the one with fewer stubs counts as cheaper. NaN is the worst score.
    """

    def place(point: TunePoint) -> tuple[float, ...]:
        bad = badness(point.mean, ascending=ascending)
        return float(getattr(point, cost)), point.stubs, bad, point.int16_macs

    found: list[TunePoint] = []
    best = math.inf
    for point in sorted(points, key=place):
        bad = badness(point.mean, ascending=ascending)
        if not found or bad < best:
            found.append(point)
            best = bad
    return tuple(found)


def badness(score: float, *, ascending: bool) -> float:
    """Larger is worse, NaN the worst."""
    if math.isnan(score):
        return math.inf
    return -score if ascending else score


def _costs(point: TunePoint) -> str:
    return ", ".join(f"{name} {getattr(point, name)}" for name in COSTS)
