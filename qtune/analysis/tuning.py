"""``tune_bad_case`` of a session: the greedy search on every bad case with a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtune.analysis import files
from qtune.analysis.cases import ANALYSIS, BASELINE
from qtune.analysis.outputs import ALL, scores
from qtune.analysis.session import FAKE_QUANT, Session
from qtune.analysis.tune_case import Skip, TunedCase, TuneGoal, tune_case
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import require_torch
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.tuned_tables import TunedTables, skipped_lines
from qtune.report.files import write_text


def tune_cases(
    session: Session,
    outputs_config: Mapping[str, Mapping[str, Any]],
    skip_prefix: Mapping[str, Sequence[str]] | None,
) -> TunedTables:
    """Tune every output on each bad case that has a v2 table, and write the tables."""
    if session.analysis_type != FAKE_QUANT:
        raise AnalysisError(f"tune_bad_case works on analysis type {FAKE_QUANT!r} only")
    model = require_torch(session.analysed, "tune_bad_case")
    session.check_states("tune_bad_case")
    goals, skip = _goals(outputs_config), Skip.of(skip_prefix)
    tables = {output: _tables_of(session, output) for output in goals}
    result = TunedTables({}, {}, {})
    for output, goal in goals.items():
        for index, table in tables[output]:
            tuned = _tuned(session, model, index, table, goal, skip)
            _write(session, output, index, tuned)
            result.tables.setdefault(output, []).append(tuned.table)
            result.reached.setdefault(output, []).append(tuned.reached)
            result.skipped.update(tuned.skipped)
    return result


def _goals(outputs_config: Any) -> dict[str, TuneGoal]:
    if not isinstance(outputs_config, Mapping) or not outputs_config:
        raise AnalysisError(
            "tune_bad_case: outputs_config is a dict of output name -> {'metric': ..., "
            f"'threshold': ..., 'max_tuned_stubs': ...}}, got {outputs_config!r}"
        )
    goals = {output: TuneGoal.of(output, config) for output, config in outputs_config.items()}
    for output, goal in goals.items():
        if (output == ALL) and goal.metric.scope != ALL:
            raise AnalysisError(
                f"tune_bad_case: outputs_config[{ALL!r}]: {goal.metric} is of scope "
                f"{goal.metric.scope!r} and has no value for the whole output; take a metric of "
                f"scope {ALL!r}, or name an output"
            )
        if output != ALL and goal.metric.scope == ALL:
            raise AnalysisError(
                f"tune_bad_case: outputs_config[{output!r}]: {goal.metric} is of scope {ALL!r}, "
                f"its output is called {ALL!r}"
            )
    return goals


def _write(session: Session, output: str, index: int, tuned: TunedCase) -> None:
    stem = files.tuned_stem(session.out_dir, output, index)
    tuned.table.save(stem)
    text = "\n\n".join([str(tuned.table), *skipped_lines(tuned.skipped)])
    write_text(stem.with_name(stem.name + ".txt"), text + "\n")


def _tuned(
    session: Session,
    model: PreparedModel,
    index: int,
    table: SensitivityTable,
    goal: TuneGoal,
    skip: Skip,
) -> TunedCase:
    case = session.cases.load(index)

    def score() -> float:
        outputs = session.outputs(ANALYSIS, case)
        found = scores(goal.metric, baseline, outputs, session.post_process)
        value = found.get(table.output_name)
        if value is None:
            raise AnalysisError(
                f"tune_bad_case: {goal.metric} has no value for output {table.output_name!r} "
                f"on this bad case; it has: {sorted(n for n in found if found[n] is not None)}"
            )
        return value

    with session.undisturbed():
        baseline = session.outputs(BASELINE, case)
        return tune_case(model, table, goal, score, skip)


def _tables_of(session: Session, output: str) -> list[tuple[int, SensitivityTable]]:
    """The v2 tables of the present bad cases, ``FileNotFoundError`` if there is none."""
    indices = session.cases.indices_of(output)
    known = [i for i in indices if session.cases.loaded or (output, i) in session.tables]
    found, missing = [], None
    for index in known or indices[:1]:
        try:
            found.append((index, _table_of(session, output, index)))
        except FileNotFoundError as error:
            missing = error
    if not known and found:
        raise FileNotFoundError(
            f"the sensitivity tables in {session.out_dir} belong to earlier bad cases; call "
            "sensitivity(use_sensitivity_v2=True) again"
        )
    if missing is not None and not found:
        tables = sorted({repr(name) for name, _ in session.tables})
        known_outputs = f"; there are tables of: {', '.join(tables)}" if tables else ""
        raise FileNotFoundError(f"tune_bad_case: output {output!r}: {missing}{known_outputs}")
    return found


def _table_of(session: Session, output: str, index: int) -> SensitivityTable:
    """The table that this session made; that of an earlier one from its file."""
    known = session.tables.get((output, index))
    return files.read_table(session.out_dir, output, index) if known is None else known
