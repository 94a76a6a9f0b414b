"""``qtune profile``: one forward, the numbers of every operator's tensors."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from qtune.capture.inputs import Inputs
from qtune.cli.commands import STAGE
from qtune.cli.data import Data
from qtune.cli.models import bc_models, is_bc, session
from qtune.cli.operators import op_types, prefixes
from qtune.cli.outcome import Gate, InputError, Outcome
from qtune.hbir.module import HbirModule
from qtune.profiler.observe import Model, run_model
from qtune.profiler.profiling import HbirModelProfiler, ModelProfiler
from qtune.profiler.statistic import COLUMNS, FILE, StatisticTable, TensorRow
from qtune.report.table import text_table

_HIDDEN = ("Index", "Op Name")
_TENSORBOARD = "tensorboard"


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to run, its data, and the model whose forward says what an item means."""

    model: Model
    called: Any
    data: Data
    facts: Mapping[str, Any]


def run(args: argparse.Namespace) -> Outcome:
    """Profile the model that the options describe."""
    if args.per_channel and not args.tensorboard:
        raise InputError("--per-channel: the tables are per tensor; it needs --tensorboard")
    with _subject(args) as subject:
        inputs = _item(subject, args.case)
        folder = Path(args.out_dir)
        manager = _profiled(subject.model, inputs, folder).get_info_manager()
        wanted: dict[str, Any] = {"prefixes": prefixes(args), "types": op_types(args)}
        table = manager.table(with_stack=args.stack, **wanted)
        if not table.rows:
            raise InputError("--prefix, --op-type: no operator is called so")
        files = [folder / FILE]
        if args.tensorboard:
            files.append(manager.tensorboard(force_per_channel=args.per_channel, **wanted))
        facts = {**subject.facts, "case": args.case}
        gates = [_finite(table) for _ in args.fail_on]
        return Outcome(facts, {"tensors": table.to_dict()}, _text(table, args), gates, files)


def _profiled(model: Model, inputs: Inputs, folder: Path) -> ModelProfiler | HbirModelProfiler:
    profiler: ModelProfiler | HbirModelProfiler
    if isinstance(model, nn.Module):
        profiler = ModelProfiler(model, folder)
    else:
        profiler = HbirModelProfiler(model, folder)
    with profiler:
        run_model(model, inputs)
    return profiler


@contextmanager
def _subject(args: argparse.Namespace) -> Iterator[Subject]:
    if is_bc(args.model):
        if args.stage is not None:
            raise InputError(f"--stage: {args.model} is one stage already")
        with bc_models(args, {"MODEL": args.model}) as ((model,), data):
            yield Subject(model, model, data, _bc_facts(args, model, data))
        return
    with session(args) as found:
        stage = args.stage or STAGE
        facts = {**found.facts, "stage": stage}
        if stage == "float":
            del facts["calibration"]
        yield Subject(found.stage(stage), found.stage("float"), found.data, facts)


def _bc_facts(args: argparse.Namespace, model: HbirModule, data: Data) -> dict[str, Any]:
    return {"model": args.model, "march": model.march, "data": data.text, "stage": model.stage}


def _item(subject: Subject, case: int) -> Inputs:
    found = next(itertools.islice(subject.data.calls(subject.called), case, None), None)
    if found is None:
        raise InputError(f"--case: {subject.data.text} has no item {case}")
    return found


def _finite(table: StatisticTable) -> Gate:
    bad = table.not_finite()
    where = {"tensor": _named(bad[0])} if bad else {}
    return Gate("--fail-on nonfinite", not bad, len(bad), "0", where)


def _named(row: TensorRow) -> str:
    return f"{row.module} {row.tensor.attr}"


def _text(table: StatisticTable, args: argparse.Namespace) -> str:
    columns = [name for name in COLUMNS if name not in _HIDDEN]
    parts = [_table("the largest range first", table.by_range(), columns, table, args.top)]
    if table.not_finite():
        parts.append(_table("with NaN or infinity", table.not_finite(), columns, table, args.top))
    return "\n\n".join(parts)


def _table(
    title: str,
    rows: Sequence[TensorRow],
    columns: Sequence[str],
    whole: StatisticTable,
    top: int,
) -> str:
    shown = [row.cells() for row in rows[:top]]
    return f"Tensors, {title} ({len(shown)} of {len(whole.rows)}):\n{text_table(shown, columns)}"
