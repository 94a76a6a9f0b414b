"""Greedy search on one bad case: raise int8 stubs in order of their gain, keep what helps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from qtune.analysis.grad_x_error import SCORE
from qtune.analysis.raising import Raised, Raising
from qtune.analysis.sensitivity import GAIN
from qtune.dtype import qint8
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat.op import iter_ops
from qtune.profiler.metric import MetricInfo, metric_of_old_name
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.qconfig.sensitivity import Entry
from qtune.report.progress import progress

CONFIG_KEYS = ("metric", "threshold", "max_tuned_stubs")
KINDS = ("output", "weight", "input")
_WHERE = "tune_bad_case"


@dataclass(frozen=True, slots=True)
class Skip:
    """Stubs that the user wants left alone: prefix of an operator's name -> kinds of stubs.

    A kind is ``output``, ``weight``, ``input`` (every one) or ``input-<n>``.
    """

    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, skip_prefix: Mapping[str, Sequence[str]] | None, where: str = _WHERE) -> Skip:
        """Checked; raises ``AnalysisError`` for anything else."""
        if skip_prefix is not None and not isinstance(skip_prefix, Mapping):
            raise AnalysisError(
                f"{where}: skip_prefix is a dict of prefix -> list of kinds, got {skip_prefix!r}"
            )
        found: dict[str, tuple[str, ...]] = {}
        for prefix, kinds in (skip_prefix or {}).items():
            if not isinstance(prefix, str):
                raise AnalysisError(f"{where}: skip_prefix: a prefix is a text, got {prefix!r}")
            is_list = isinstance(kinds, Iterable) and not isinstance(kinds, str)
            given = list(kinds) if is_list else []
            if not given or any(str(kind).partition("-")[0] not in KINDS for kind in given):
                raise AnalysisError(
                    f"{where}: skip_prefix {prefix!r}: expected a list of "
                    f"{', '.join(KINDS)} or input-<n>, got {kinds!r}"
                )
            found[prefix] = tuple(given)
        return cls(found)

    def reason(self, entry: Entry) -> str:
        """Why a stub is left alone, ``""`` if it isn't."""
        name, port = entry
        for prefix, kinds in self.kinds.items():
            if name.startswith(prefix) and (port in kinds or port.partition("-")[0] in kinds):
                return f"skip_prefix {prefix!r}"
        return ""

    def check_names(self, names: Sequence[str], where: str = _WHERE) -> None:
        """Raise for a prefix that no operator has."""
        for prefix in self.kinds:
            if not any(name.startswith(prefix) for name in names):
                close = get_close_matches(prefix, names)
                raise AnalysisError(
                    f"{where}: skip_prefix {prefix!r}: no operator's name begins so"
                    + (f"; close: {', '.join(close)}" if close else "")
                )


@dataclass(frozen=True, slots=True)
class TuneGoal:
    """When to stop: the metric reached ``threshold``, or ``max_tuned_stubs`` were raised."""

    metric: MetricInfo
    threshold: float
    max_tuned_stubs: int

    @classmethod
    def of(cls, output: str, config: Any) -> TuneGoal:
        """The goal that an entry of ``outputs_config`` describes; ``AnalysisError`` otherwise."""
        where = f"{_WHERE}: outputs_config[{output!r}]"
        if not isinstance(config, Mapping) or set(config) != set(CONFIG_KEYS):
            raise AnalysisError(
                f"{where} has the keys {', '.join(CONFIG_KEYS)}; got {_keys_of(config)}"
            )
        threshold, most = config["threshold"], config["max_tuned_stubs"]
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise AnalysisError(f"{where}: threshold is a number, got {threshold!r}")
        if math.isnan(threshold):
            raise AnalysisError(f"{where}: threshold is NaN, which nothing reaches")
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise AnalysisError(f"{where}: max_tuned_stubs is an integer from 0 on, got {most!r}")
        return cls(metric_of_old_name(config["metric"]), float(threshold), most)

    def reached(self, value: float) -> bool:
        """Whether ``value`` is good enough; NaN never is."""
        return value >= self.threshold if self.metric.ascending else value <= self.threshold


@dataclass(frozen=True, slots=True)
class TunedCase:
    """The table with ``tuned_cumulative_<metric>``, whether the threshold was reached, and the
    stubs (``conv1 weight``) that were left alone, with the reason.
    """

    table: SensitivityTable
    reached: bool
    skipped: dict[str, str]


def tune_case(
    model: PreparedModel,
    table: SensitivityTable,
    goal: TuneGoal,
    score: Callable[[], float],
    skip: Skip | None = None,
) -> TunedCase:
    """Raise stubs in the order of ``table``; the column has a value where that helped.

    ``score()`` runs ``model`` as it is now and gives the goal's metric. The model is changed stub
    by stub and restored at the end, dtype and scale, also after an error.
    """
    ranked = by_gain(table)
    raising = Raising(model)
    search = _Search(raising, goal, score, skip or Skip())
    search.skip.check_names([name for name, _ in raising.ports])
    entries = [(row["op_name"], row["fake_stub_type"]) for row in ranked.records()]
    _check_model(model, entries)
    with raising.kept_back():
        search.best = score()
        for entry in progress(entries, "tune", unit="stub"):
            if search.is_done:
                break
            search.offer(entry)
    order = search.arranged(entries)
    column = f"tuned_cumulative_{goal.metric.name}"
    values = [search.cumulative.get(entries[place]) for place in order]
    found = ranked.arranged(order).with_column(column, values)
    return TunedCase(found, goal.reached(search.best), search.skipped)


def _check_model(model: PreparedModel, entries: Sequence[Entry]) -> None:
    """Raise for a table of another model."""
    known = {op.name for op in iter_ops(model)}
    unknown = sorted({name for name, _ in entries} - known)
    if unknown:
        raise AnalysisError(
            f"{_WHERE}: the table is one of another model, it names {', '.join(unknown[:3])}; call "
            "sensitivity(use_sensitivity_v2=True) again"
        )


def by_gain(table: SensitivityTable) -> SensitivityTable:
    """The table in the order in which stubs are tried: by the gain, or by GRAD_X_ERROR."""
    for column in (f"{GAIN}_{table.metric}", SCORE):
        if column in table.columns:
            return table.sort_by_column(column)
    raise AnalysisError(
        f"{_WHERE}: this table has neither {GAIN}_{table.metric} nor {SCORE}; make it with "
        "sensitivity(use_sensitivity_v2=True)"
    )


class _Search:
    def __init__(
        self, raising: Raising, goal: TuneGoal, score: Callable[[], float], skip: Skip
    ) -> None:
        self.raising = raising
        self.goal = goal
        self.score = score
        self.skip = skip
        self.best = math.nan
        self.skipped: dict[str, str] = {}
        self.cumulative: dict[Entry, float] = {}
        self._leader: dict[Entry, Entry] = {}
        self._now = raising.nothing

    @property
    def is_done(self) -> bool:
        """Whether the goal is reached, or as many stubs are raised as may be."""
        return self.goal.reached(self.best) or len(self.cumulative) >= self.goal.max_tuned_stubs

    def offer(self, entry: Entry) -> None:
        """Keep the stub, and those that come with it, if the score gets better."""
        port = self.raising.ports.get(entry)
        is_int8 = port is not None and port.fake_quantize.dtype == qint8
        if entry in self.cumulative or (port is not None and not is_int8):
            return
        if port is not None:
            found = self._planned(entry)
        else:
            is_cast = entry in self.raising.casts
            found = "a cast to float16 stays that" if is_cast else "the model has no such stub"
        if isinstance(found, Raised):
            self._try(entry, found)
        else:
            self.skipped[" ".join(entry)] = found

    def _planned(self, entry: Entry) -> Raised | str:
        if self.skip.reason(entry):
            return self.skip.reason(entry)
        found = self.raising.plan([*self.cumulative, entry])
        if isinstance(found, str):
            return found
        for more in found.entries:
            if self.skip.reason(more):
                return f"{' '.join(more)} comes with it: {self.skip.reason(more)}"
        if len(found.entries) > self.goal.max_tuned_stubs:
            names = ", ".join(" ".join(e) for e in found.entries[len(self.cumulative) + 1 :])
            return f"max_tuned_stubs: {names} would come with it"
        return found

    def arranged(self, entries: Sequence[Entry]) -> list[int]:
        """Places of the entries, each stub that came with another right behind that one."""

        def place(index: int) -> tuple[int, int]:
            entry = entries[index]
            leader = self._leader.get(entry, entry)
            return entries.index(leader), 0 if leader == entry else 1 + index

        return sorted(range(len(entries)), key=place)

    def _try(self, tried: Entry, raised: Raised) -> None:
        self.raising.apply(raised)
        value, goal = self.score(), self.goal
        if goal.metric.badness(value) < goal.metric.badness(self.best):
            self.best, self._now = value, raised
            new = [entry for entry in raised.entries if entry not in self.cumulative]
            self.cumulative.update(dict.fromkeys(new, value))
            self._leader.update(dict.fromkeys(new, tried))
            for entry in new:
                self.skipped.pop(" ".join(entry), None)
        else:
            self.raising.apply(self._now)


def _keys_of(config: Any) -> str:
    """What came in place of ``CONFIG_KEYS``, and how it differs."""
    if not isinstance(config, Mapping):
        return f"{config!r}"
    differing = {
        "missing": [key for key in CONFIG_KEYS if key not in config],
        "unknown": [str(key) for key in config if key not in CONFIG_KEYS],
    }
    texts = [f"{what}: {', '.join(keys)}" for what, keys in differing.items() if keys]
    return f"{sorted(map(str, config))} ({'; '.join(texts)})"
