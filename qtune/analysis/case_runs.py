"""Run the models of a session on a bad case, and compare the two runs operator by operator."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from qtune.analysis import files
from qtune.analysis.cases import ANALYSIS, BASELINE, Case
from qtune.analysis.compare import Facts, LayerComparison, compare, selected
from qtune.analysis.facts import facts_of
from qtune.analysis.old_files import write_old_comparison
from qtune.analysis.op_info import RunFiles
from qtune.analysis.session import Session, SideRun
from qtune.errors import AnalysisError
from qtune.profiler.float_reference import stream_baseline
from qtune.profiler.observe import stream
from qtune.profiler.op_files import read_profile
from qtune.profiler.record import Observation, OnRecord
from qtune.profiler.undisturbed import same_randomness
from qtune.report.progress import progress


def run_case(session: Session, case: Case, sides: Sequence[str], on_cpu: bool) -> None:
    """Run the models of ``sides`` on ``case``; their operators' results go to ``op_infos``."""
    session.check_states("run")
    device = torch.device("cpu") if on_cpu else session.run_device
    calls = {side: session.inputs_of(case, side, device) for side in sides}
    runs: dict[str, Callable[[OnRecord], Any]] = {
        BASELINE: lambda note: stream_baseline(*session.models, calls[BASELINE], note),
        ANALYSIS: lambda note: stream(session.analysed, calls[ANALYSIS], note),
    }
    for side in sides:  # their files go now: a run that ends half-way leaves none
        session.runs.pop(side, None)
    with session.undisturbed(device):
        for side in progress(sides, "run", unit="model"):
            stored = RunFiles(session.out_dir / files.OP_INFOS / side)
            with same_randomness(), session.before(case, side, device):
                outputs = runs[side](stored.note)
            session.runs[side] = SideRun(stored.observation(outputs), case, device)


def compare_runs(
    session: Session, prefixes: Sequence[str] | None, types: Sequence[Any] | None
) -> LayerComparison:
    """Compare the two runs and write the tables and the page."""
    missing = [side for side in (BASELINE, ANALYSIS) if side not in session.runs]
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        raise AnalysisError(
            f"compare_per_layer: both models must have run, {' and '.join(missing)} {verb} not; "
            "call run() or set_model_profiler_dir() first"
        )
    _check_one_case(session)
    baseline, run = session.runs[BASELINE].observation, session.runs[ANALYSIS]
    wanted = selected(baseline, prefixes, types)
    facts = _facts(session, baseline)
    found = compare(baseline, run.observation, session.metrics, facts)
    found = found.only(wanted)
    files.write_comparison(session.out_dir, found, session.metrics)
    if session.old_style:
        write_old_comparison(session, baseline, run.observation, facts)
    return found


def _check_one_case(session: Session) -> None:
    """Two cases of a report can't be compared; what was set by hand for each side can."""
    cases = [session.runs[side].case for side in (BASELINE, ANALYSIS)]
    indices = [case.index for case in cases if case is not None]
    if session.cases.by_hand is None and len(set(indices)) > 1:
        raise AnalysisError(
            f"compare_per_layer: the baseline ran on case {indices[0]}, the analysed model on case "
            f"{indices[1]}; call run(index=...) for both models"
        )


def take_profiles(session: Session, baseline: str | Path, analysed: str | Path) -> None:
    """Compare what two profilers saw, in place of runs; ``AnalysisError`` for a folder without."""
    found = {BASELINE: read_profile(baseline), ANALYSIS: read_profile(analysed)}
    session.runs = {side: SideRun(observation) for side, observation in found.items()}


def _facts(session: Session, baseline: Observation) -> Facts:
    case, device = session.runs[ANALYSIS].case, session.runs[ANALYSIS].device
    kind = session.analysis_type
    if case is None:
        return facts_of(*session.models, kind, None, baseline, session.metrics)
    inputs, own_state = session.inputs_of(case, ANALYSIS, device), session.undisturbed(device)
    with own_state, same_randomness(), session.before(case, ANALYSIS, device):
        return facts_of(*session.models, kind, inputs, baseline, session.metrics)


def forget_runs(session: Session) -> None:
    """Remove the results of the operators, in memory and on disk."""
    shutil.rmtree(session.out_dir / files.OP_INFOS, ignore_errors=True)
    session.runs.clear()
