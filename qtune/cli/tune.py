"""``qtune tune``: the ports to raise to int16 within a budget, and the dtypes that do it."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qtune.analysis.tune import FILE, tune
from qtune.analysis.tune_costs import latency_us
from qtune.cli.metrics import measured, ranking_metric
from qtune.cli.models import Session, session
from qtune.cli.outcome import Gate, InputError, Outcome
from qtune.cli.sources import load_object
from qtune.errors import kind_of
from qtune.prepare.rundir import write_dtypes
from qtune.profiler.tune_front import Budget, TuneFront, TunePoint
from qtune.testing.arguments import check_prepared
from qtune.testing.failure import one_line
from qtune.testing.limits import Limit

METRIC = "L1"
_EVERY_PORT = ("output", "weight", "input")


@dataclass(frozen=True, slots=True)
class Target:
    """What ``--target`` asks for: a value of the metric, or of the user's score, by its name."""

    name: str
    value: float

    @classmethod
    def of(cls, args: argparse.Namespace) -> Target | None:
        """The target; ``InputError`` where it names something else than what is measured."""
        if args.target is None:
            return None
        name, value = args.target
        spec = args.score or args.loss
        judged = spec.rpartition(":")[2] if spec else (args.metric or name)
        if judged != name:
            raise InputError(
                f"--target {name}={value:g}: what is measured is {judged}; write --target "
                f"{judged}={value:g}"
            )
        return cls(name, value)


def run(args: argparse.Namespace) -> Outcome:
    """Tune the model that the options describe."""
    if args.score is not None and args.loss is not None:
        raise InputError("--score and --loss: give one of them")
    target = Target.of(args)
    args.metric = args.metric or (target.name if target and not args.score else None)
    with ranking_metric(args, METRIC) as metric, session(args) as found:
        budget = _budget(args, found)
        front = tune(
            found.stage("float"),
            check_prepared("tune", found.stage("calib")),
            found.data.calls(found.stage("float")),
            metric,
            budget=budget,
            score=_score(args.score),
            output=args.output,
            skip_prefix=dict.fromkeys(args.skip, _EVERY_PORT) or None,
            max_evaluations=args.evaluations,
            out_dir=args.out_dir,
        )
        point = _chosen(front, budget, target)
        dtypes = write_dtypes(found.prepared(_raised(point, found)), Path(args.out_dir))
        gates = [] if target is None else [_gate(target, front, point)]
        result = {"front": front.to_dict(), "chosen": point.to_dict(), "budget": asdict(budget)}
        files = [Path(args.out_dir) / f"{FILE}.html", dtypes]
        return Outcome(found.facts, result, _text(front, point, dtypes), gates, files)


def _budget(args: argparse.Namespace, found: Session) -> Budget:
    limit = None
    if args.latency is not None:
        value, is_factor = args.latency
        now = _time(check_prepared("tune", found.stage("calib")), found)
        limit = value * (now if is_factor else 1.0)
        if limit < now:
            raise InputError(
                f"--latency: the model as it is takes {now:.6g} us by the static estimate, more "
                f"than {limit:.6g} us; for a factor write an x behind it, such as 1.2x"
            )
    return Budget(args.int16_macs, limit, args.stubs)


def _time(model: Any, found: Session) -> float:
    """Microseconds for a batch of the data, as in the front; calibration may have other sizes."""
    batch = next(found.data.calls(found.stage("float")))
    return latency_us(model, batch, found.march)


def _score(spec: str | None) -> Callable[[Any], Any] | None:
    if spec is None:
        return None
    function = load_object(spec, "--score")
    if not callable(function):
        raise InputError(f"--score: {spec} is {kind_of(function)}, no function")

    @functools.wraps(function)
    def score(model: Any) -> Any:
        try:
            return function(model)
        except Exception as error:
            raise InputError(
                f"--score: {spec}, called with the calibrated model, raised {one_line(error)}"
            ) from error

    return score


def _chosen(front: TuneFront, budget: Budget, target: Target | None) -> TunePoint:
    """The cheapest point that reaches the target, else the best one within the budget."""
    reaching = [p for p in front.points if target is not None and _reaches(front, p, target)]
    within = [point for point in reaching if budget.allows(point)]
    return within[0] if within else front.best(budget)


def _reaches(front: TuneFront, point: TunePoint, target: Target) -> bool:
    return _limit(front, target).holds(point.mean)


def _limit(front: TuneFront, target: Target) -> Limit:
    metric = measured(front.score, ascending=front.ascending)
    return Limit(f"--target {target.name}={target.value:g}", metric, target.value)


def _gate(target: Target, front: TuneFront, point: TunePoint) -> Gate:
    limit = _limit(front, target)
    where = {"stubs": point.stubs, "int16_macs": point.int16_macs}
    return Gate(limit.key, limit.holds(point.mean), point.mean, str(limit), where)


def _raised(point: TunePoint, found: Session) -> Any:
    """A setter: the point before the user's own, or before the default."""
    return point if found.setter is None else (point, found.setter)


def _text(front: TuneFront, point: TunePoint, dtypes: Path) -> str:
    raised = ", ".join(" ".join(entry) for entry in point.ports) or "nothing"
    return (
        f"{front}\n\n"
        f"Chosen: {front.score} {point.mean:.6g} with {point.stubs} raised to qint16: {raised}\n"
        f"Use it: --dtypes {dtypes}, or LoadFromFileTemplate({str(dtypes)!r})"
    )
