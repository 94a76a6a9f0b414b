"""``tune``: which stubs to raise to int16 for a budget, measured over a whole data set."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from qtune.analysis.ablation import ports
from qtune.analysis.outputs import PostProcess
from qtune.analysis.pairs import check_pair
from qtune.analysis.raising import Raising, basis_of
from qtune.analysis.sensitivity import gain_of, sensitivity_tables
from qtune.analysis.session import FAKE_QUANT
from qtune.analysis.tune_case import Skip
from qtune.analysis.tune_costs import Costs, latency_us
from qtune.analysis.tune_page import tune_page
from qtune.analysis.tune_scores import (
    MetricScore,
    Score,
    UserScore,
    baselines_of,
    batches_of,
    output_of,
)
from qtune.analysis.tune_search import Search, rank
from qtune.capture.inputs import Inputs
from qtune.capture.restore import restored
from qtune.dtype import qint8
from qtune.errors import AnalysisError, QtuneError
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import MetricInfo, metric_of_old_name
from qtune.profiler.observe import Model, require_torch
from qtune.profiler.tune_front import Budget, TuneFront, TunePoint, front_of
from qtune.profiler.undisturbed import refuse_observing, undisturbed
from qtune.qconfig.sensitivity import Entry
from qtune.report.files import check_folder, write_text
from qtune.report.processes import is_first_process
from qtune.report.progress import progress, progress_bar

FILE = "tune_front"
_WHERE = "tune"
_log = logging.getLogger("qtune.analysis")


def tune(
    float_model: Model,
    calib_model: PreparedModel,
    data: Iterable[Any],
    metric: str | MetricInfo = "L1",
    *,
    budget: Budget | Mapping[str, Any] | float | None = None,
    score: Callable[[PreparedModel], Any] | None = None,
    higher_is_better: bool = True,
    output: str | None = None,
    post_process: PostProcess | None = None,
    skip_prefix: Mapping[str, Sequence[str]] | None = None,
    max_evaluations: int = 40,
    latency: bool = True,
    out_dir: str | Path | None = None,
) -> TuneFront:
    """Search the int8 stubs of ``calib_model`` to raise to int16; return the Pareto front.

    ``data``: batches as ``forward`` takes them, read once and kept. Measured is ``metric`` between
    ``float_model`` and ``calib_model`` on ``output`` (needed where there are several and the metric
    is not of scope ``all``), averaged over the batches, or ``score(calib_model)``, for example an
    accuracy. ``budget``: see ``Budget``; points beyond it are not tried.

    First every stub is ranked by sensitivity under ``metric`` on all batches: what int16 gains, and
    what it gains per cycle. Then prefixes of both rankings run over the data, up to
    ``max_evaluations`` of them, closer together where the score changes. ``skip_prefix`` as in
    ``tune_bad_case``. ``latency``: whether the points of the front get an estimate (an export and a
    conversion each). Writes ``tune_front.txt``, ``.csv``, ``.pt``, ``.html`` into ``out_dir``.

    Each process of ``torch.distributed`` does the whole work, so that ``score`` may share out its
    own; the first one writes the files.

    Both models are restored whatever happens. Raises ``AnalysisError`` for models or data that
    can't be used, ``NotCalibratedError`` for stubs without a scale.
    """
    model = require_torch(calib_model, _WHERE)
    check_pair(float_model, model, FAKE_QUANT)
    for each in (float_model, model):
        refuse_observing(each, _WHERE)
    if out_dir is not None:
        check_folder(out_dir, f"{_WHERE}: out_dir", AnalysisError)
    limit, judge = Budget.of(budget), metric_of_old_name(metric)
    _check(limit, score, max_evaluations, latency=latency)
    skip, batches = Skip.of(skip_prefix, _WHERE), batches_of(data, model)
    beside = cast(nn.Module, float_model)  # no HBIR module can be beside a prepared model
    with restored(beside), undisturbed(beside, model):  # a score may run it, too
        baselines = baselines_of(float_model, batches)
        output = output_of(judge, baselines[0], output, post_process)
        compared = MetricScore(judge, model, batches, baselines, output, post_process)
        gains = _gains(compared, skip)
        own = None if score is None else UserScore(score, model, higher_is_better)
        measured: Score = own or compared
        work = _Work(model, batches[0], measured, limit, max_evaluations, latency)
        front = work.front(gains)
    if out_dir is not None and is_first_process():
        front.save(Path(out_dir) / FILE)
        write_text(Path(out_dir) / f"{FILE}.html", tune_page(front))
    return front


def _check(budget: Budget, score: Any, most: int, *, latency: bool) -> None:
    if score is not None and not callable(score):
        raise AnalysisError(f"{_WHERE}: score is a function of the model, got {score!r}")
    if isinstance(most, bool) or not isinstance(most, int) or most < 2:
        raise AnalysisError(f"{_WHERE}: max_evaluations is an integer from 2 on, got {most!r}")
    if budget.latency_us is not None and not latency:
        raise AnalysisError(f"{_WHERE}: a budget of latency_us needs latency=True")


def _gains(score: MetricScore, skip: Skip) -> dict[Entry, float]:
    """What int16 at each int8 stub alone gains, averaged over the batches."""
    model, metric = score.model, score.metric
    able = {(port.op.name, port.kind): port.fake_quantize.dtype == qint8 for port in ports(model)}
    skip.check_names([name for name, _ in able], _WHERE)
    found: dict[Entry, list[float]] = {
        entry: [] for entry, is_int8 in able.items() if is_int8 and not skip.reason(entry)
    }
    for inputs in progress(score.batches, "rank", unit="batch"):
        tables = sensitivity_tables(
            model,
            inputs,
            metric,
            "",
            variants=("qint8", "qint16"),
            output_names=[score.output],
            post_process=score.post_process,
            shown=False,
        )
        for row in (row for table in tables.values() for row in table.records()):
            entry = (row["op_name"], row["fake_stub_type"])
            gain = gained(metric, row[f"qint8_{metric}"], row[f"qint16_{metric}"])
            if entry in found and gain is not None:
                found[entry].append(gain)
    return {entry: sum(all_) / len(all_) if all_ else 0.0 for entry, all_ in found.items()}


def gained(metric: MetricInfo, low: float | None, high: float | None) -> float | None:
    """The gain of a sensitivity table; from NaN to a number is more than any number."""
    if low is None or high is None:
        return None
    before, after = metric.badness(low), metric.badness(high)
    if before == after:
        return 0.0
    if math.isnan(low) or math.isnan(high):
        return before - after
    return gain_of(metric, low, high)


@dataclass(frozen=True, slots=True)
class _Work:
    """The search on one model."""

    model: PreparedModel
    inputs: Inputs
    score: Score
    budget: Budget
    most: int
    latency: bool

    def front(self, gains: Mapping[Entry, float]) -> TuneFront:
        """Rank, measure, and keep what is worth its cost."""
        raising = Raising(self.model)
        basis = basis_of(self.model)
        bar = progress_bar(self.most, _WHERE, unit="point")
        with raising.kept_back(), bar as moving:
            search = Search(raising, Costs(basis), self.score, self.budget, self._time, moving)
            cycles = {entry: search.added_cycles(entry) for entry in gains}
            for order, most in zip(rank(gains, cycles), self._shares(), strict=True):
                if most:
                    search.run(order, most)
            points = front_of(
                list(search.points.values()), self.budget.cost, ascending=self.score.ascending
            )
            points, notes = self._timed(search, points)
        return TuneFront(
            points,
            tuple(search.points.values()),
            self.score.name,
            self.score.ascending,
            self.budget.cost,
            str(basis.march),
            search.skipped,
            notes,
        )

    def _shares(self) -> tuple[int, int]:
        second = self.most // 2 if self.most > 2 else 0  # the first needs two: none, and all
        return self.most - second, second

    def _time(self) -> float:
        return latency_us(self.model, self.inputs, basis_of(self.model).march)

    def _timed(
        self, search: Search, points: tuple[TunePoint, ...]
    ) -> tuple[tuple[TunePoint, ...], tuple[str, ...]]:
        """The points with their latency; as they are, with a note, where it can't be estimated."""
        if not self.latency:
            return points, ()
        try:
            return tuple(search.latency_of(point) for point in points), ()
        except QtuneError as error:
            note = f"no latency: {error}"
            _log.warning("%s: %s", _WHERE, note)
            return points, (note,)
