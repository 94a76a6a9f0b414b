"""What the methods of one ``QuantAnalysis`` share: the two models, their case, and the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qtune.analysis import files
from qtune.analysis.cases import ANALYSIS, BASELINE, BadCases, Case, CaseStore
from qtune.analysis.devices import inputs_on
from qtune.analysis.outputs import PostProcess
from qtune.analysis.ranks import ALONE, Ranks
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError, RunError
from qtune.hbir.feeding import whole_call
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.profiler.kept_state import apart, attributes_kept, buffers_kept, set_attributes
from qtune.profiler.metric import MetricInfo
from qtune.profiler.observe import Model, Observation, run_model
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.undisturbed import refuse_observing, same_randomness, undisturbed

FAKE_QUANT = "fake_quant"
ON_CPU = ("export", "convert")
"""Analysis types that run on the CPU always: a BPU program agrees with torch's CPU best."""


@dataclass(frozen=True, slots=True)
class SideRun:
    """What ``run`` saw of one model, on which case (``None``: a profiler's, on some inputs), and
    where.
    """

    observation: Observation
    case: Case | None = None
    device: torch.device | None = None


@dataclass(slots=True)
class Session:
    """The state of an analysis.

    ``kinds``: of the two models (``qtune.analysis.pairs``). ``runs``: side -> the latest run.
    ``old_style``: a call was one of the older toolchain, so its files are written too.
    ``tables``: (output, index) -> the sensitivity table, of the present cases.
    """

    baseline: Model
    analysed: Model
    analysis_type: str
    kinds: tuple[str, str]
    device: torch.device
    out_dir: Path
    metrics: list[MetricInfo]
    post_process: PostProcess | None
    cases: BadCases
    device_ids: int | None = None
    ranks: Ranks = ALONE
    old_style: bool = False
    runs: dict[str, SideRun] = field(default_factory=dict)
    tables: dict[tuple[str, int], SensitivityTable] = field(default_factory=dict)

    @property
    def models(self) -> tuple[Model, Model]:
        """Baseline and analysed model."""
        return self.baseline, self.analysed

    @property
    def run_device(self) -> torch.device:
        """Where both models run."""
        return torch.device("cpu") if self.analysis_type in ON_CPU else self.device

    @property
    def where_run(self) -> str:
        """The device, in words, with the reason if it is not the one that was asked for."""
        asked = self.device_ids
        if asked is None or self.run_device.type != "cpu":
            return str(self.run_device)
        why = f"{self.analysis_type} always" if self.device.type != "cpu" else "no GPU here"
        return f"cpu (device_ids={asked}: {why})"

    @property
    def called_model(self) -> Model:
        """The model whose forward says what a batch means: one of torch, if there is one."""
        return next((m for m in self.models if isinstance(m, nn.Module)), self.analysed)

    def model_of(self, side: str) -> Model:
        """The model of a side."""
        return self.baseline if side == BASELINE else self.analysed

    @contextmanager
    def undisturbed(
        self, device: torch.device | None = None, cached_attrs: Sequence[str] = ()
    ) -> Iterator[None]:
        """Both models in eval mode on the device of the analysis, and as they were afterwards, with
        their buffers and the attributes of these names.
        """
        with ExitStack() as stack:
            stack.enter_context(undisturbed(*self.models, device=device or self.run_device))
            for model in self.models:
                if isinstance(model, nn.Module):
                    stack.enter_context(buffers_kept(model))
                stack.enter_context(attributes_kept(model, cached_attrs))
            yield

    @contextmanager
    def before(self, case: Case, side: str, device: torch.device | None = None) -> Iterator[Model]:
        """The model of a side in the state that it had before a case; put back afterwards."""
        model, values = self.model_of(side), case.of(side)
        with ExitStack() as stack:
            if isinstance(model, nn.Module):
                stack.enter_context(buffers_kept(model))
            stack.enter_context(attributes_kept(model, values))
            set_attributes(model, values, device or self.run_device)
            yield model

    @contextmanager
    def alone(self, case: Case, side: str) -> Iterator[Inputs]:
        """One model on the device of the analysis, in the state before a case; its inputs there."""
        with undisturbed(self.model_of(side), device=self.run_device), self.before(case, side):
            yield self.inputs_of(case, side)

    def inputs_of(self, case: Case, side: str, device: torch.device | None = None) -> Inputs:
        """The call of a side's model, on the device of the analysis.

        A case that two HBIR modules found lacks the constants of the export (the task that chose a
        branch); a torch model beside an HBIR module gets them from there.
        """
        inputs = case.inputs_of(side)
        other = self.model_of(BASELINE if side == ANALYSIS else ANALYSIS)
        if isinstance(other, HbirModule) and self.cases.loaded and not case.calls:
            with suppress(RunError):  # a module with other inputs says nothing about the call
                args, kwargs = whole_call(other[0], inputs.args, dict(inputs.kwargs))
                inputs = Inputs(*args, **kwargs)
        return inputs_on(inputs, device or self.run_device)

    def outputs(self, side: str, case: Case) -> Any:
        """What the model of a side gives on a case, from the state that it had before it."""
        inputs = self.inputs_of(case, side)
        with same_randomness(), self.before(case, side) as model:
            outputs = run_model(model, inputs)
            return apart(model, outputs) if isinstance(model, nn.Module) else outputs

    def check_states(self, where: str) -> None:
        """Refuse models that would learn from the data."""
        for model in self.models:
            refuse_observing(model, where)

    def new_store(self, dump: bool = False) -> CaseStore:
        """A store of inputs in ``badcase``."""
        return CaseStore(self.out_dir / files.CASES, dump)

    def take_cases(self, cases: BadCases) -> None:
        """Go on with other bad cases: what was computed on the former ones is forgotten.

        But not the run of one side alone: the other one may take other inputs, and comes next.
        """
        self.cases = cases
        self.tables.clear()
        if len(self.runs) > 1:
            self.runs.clear()

    def torch_side(self) -> tuple[str, PreparedModel]:
        """The torch model whose stubs are ranked: the analysed one, else the baseline."""
        for side in (ANALYSIS, BASELINE):
            model = self.model_of(side)
            if isinstance(model, PreparedModel):
                return side, model
        raise AnalysisError(
            f"sensitivity needs a torch model, this analysis has {self.kinds[0]} and "
            f"{self.kinds[1]}; pass the model of pre_export as baseline, and load_bad_case()"
        )
