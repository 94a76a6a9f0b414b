"""Run the models of a session on a bad case, and compare the two runs operator by operator."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qtune.analysis import files
from qtune.analysis.cases import ANALYSIS, BASELINE, Case
from qtune.analysis.compare import LayerComparison, compare, selected
from qtune.analysis.devices import inputs_on
from qtune.analysis.facts import facts_of
from qtune.analysis.op_info import save_op_infos
from qtune.analysis.session import Session, SideRun
from qtune.errors import AnalysisError
from qtune.profiler.float_reference import observe_baseline
from qtune.profiler.observe import Observation, observe
from qtune.profiler.undisturbed import same_randomness
from qtune.report.progress import progress


def run_case(session: Session, case: Case, sides: Sequence[str], on_cpu: bool) -> None:
    """Run the models of ``sides`` on ``case``; their operators' results go to ``op_infos``."""
    session.check_states("run")
    device = torch.device("cpu") if on_cpu else session.run_device
    inputs = inputs_on(case.inputs, device)
    runs: dict[str, Callable[[], Observation]] = {
        BASELINE: lambda: observe_baseline(*session.models, inputs),
        ANALYSIS: lambda: observe(session.analysed, inputs, keep_inputs=True),
    }
    with session.undisturbed(device):
        for side in progress(sides, "run", unit="model"):
            with same_randomness(), session.before(case, side, device):
                run = runs[side]()
            session.runs[side] = SideRun(run, case)
            save_op_infos(session.out_dir / files.OP_INFOS / side, run)


def compare_runs(
    session: Session, prefixes: Sequence[str] | None, types: Sequence[Any] | None
) -> LayerComparison:
    """Compare the two runs and write the tables and the page."""
    if set(session.runs) != {BASELINE, ANALYSIS}:
        raise AnalysisError("compare_per_layer: both models must have run; call run() first")
    baseline, run = session.runs[BASELINE].observation, session.runs[ANALYSIS]
    facts = facts_of(*session.models, session.analysis_type, run.case.inputs, baseline)
    found = compare(baseline, run.observation, session.metrics, facts)
    found = found.only(selected(baseline, prefixes, types))
    files.write_comparison(session.out_dir, found, session.metrics)
    return found


def forget_runs(session: Session) -> None:
    """Remove the results of the operators, in memory and on disk."""
    shutil.rmtree(session.out_dir / files.OP_INFOS, ignore_errors=True)
    session.runs.clear()
