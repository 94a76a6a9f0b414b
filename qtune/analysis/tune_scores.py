"""How good a model is over a data set: a metric against the float model, or a user's score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from qtune.analysis.outputs import PostProcess, Scores, scores
from qtune.capture.inputs import Inputs, batch_to_inputs, naming
from qtune.capture.restore import restored
from qtune.errors import AnalysisError, kind_of
from qtune.nn.prepared import PreparedModel
from qtune.profiler.bad_case_report import listed
from qtune.profiler.metric import MetricInfo, number_of
from qtune.profiler.observe import Model, run_model
from qtune.profiler.record import duplicated
from qtune.profiler.undisturbed import same_randomness

_WHERE = "tune"


class Score(Protocol):
    """What is to become better."""

    @property
    def name(self) -> str:
        """How results call it."""

    @property
    def ascending(self) -> bool:
        """Larger is better."""

    def measure(self) -> tuple[float, float]:
        """Mean and worst of the analysed model as it is now."""


def batches_of(data: Iterable[Any], model: Model) -> list[Inputs]:
    """Every batch of ``data``, which is consumed once, as the arguments of ``forward``.

    They stay in memory: each point of the search runs over all of them.
    """
    if isinstance(data, Tensor) or not isinstance(data, Iterable | Sequence):
        raise AnalysisError(
            f"{_WHERE}: data is an iterable of batches, one batch is [batch]; got {kind_of(data)}"
        )
    found = [
        batch_to_inputs(item, model, index, _WHERE, AnalysisError)
        for index, item in enumerate(data)
    ]
    if not found:
        raise AnalysisError(f"{_WHERE}: the data gave no batch; an iterator is used up by a loop")
    return found


@dataclass(slots=True)
class MetricScore:
    """``metric`` between the outputs of the float model and those of the analysed one.

    The mean counts every batch once; a batch without a value (empty outputs) is left out.
    """

    metric: MetricInfo
    model: PreparedModel
    batches: Sequence[Inputs]
    baselines: Sequence[Any]
    output: str
    post_process: PostProcess | None = None

    @property
    def name(self) -> str:
        """The metric's."""
        return self.metric.name

    @property
    def ascending(self) -> bool:
        """The metric's."""
        return self.metric.ascending

    def measure(self) -> tuple[float, float]:
        """Mean and worst over the batches."""
        values = [
            value for value in map(self._one, self.batches, self.baselines) if value is not None
        ]
        if not values:
            raise AnalysisError(f"{_WHERE}: {self.metric} has no value on any batch")
        return sum(values) / len(values), max(values, key=self.metric.badness)

    def _one(self, inputs: Inputs, baseline: Any) -> float | None:
        with same_randomness(self.model):
            outputs = run_model(self.model, inputs)
            return scores(self.metric, baseline, outputs, self.post_process).get(self.output)


def baselines_of(float_model: Model, batches: Sequence[Inputs]) -> list[Any]:
    """The outputs of the float model on every batch, copies."""
    found = []
    for index, inputs in enumerate(batches):
        with same_randomness(float_model):
            with naming(f"batch {index} of {_WHERE}", inputs):
                found.append(duplicated(run_model(float_model, inputs)))
    return found


def output_of(
    metric: MetricInfo, baseline: Any, wanted: str | None, post_process: PostProcess | None
) -> str:
    """The output that is scored: the wanted one, or the only one there is."""
    found: Scores = scores(metric, baseline, baseline, post_process)
    if not found:
        behind = "" if post_process is None else ", behind post_process"
        raise AnalysisError(
            f"{_WHERE}: the model gives no float tensor that {metric} can compare{behind}; take a "
            "metric of scope 'all', or pass score="
        )
    if wanted is None and len(found) == 1:
        return next(iter(found))
    if wanted in found:
        return str(wanted)
    if wanted is None:
        raise AnalysisError(
            f"{_WHERE}: the model has {len(found)} outputs that {metric} can compare: "
            f"{sorted(found)}; choose one with output=..., or take a metric of scope 'all' that "
            "says how they count"
        )
    raise AnalysisError(f"{_WHERE}: no output {wanted!r}; this model has: {listed(sorted(found))}")


@dataclass(slots=True)
class UserScore:
    """``function(model)``, for example the accuracy on labelled data."""

    function: Callable[[PreparedModel], Any]
    model: PreparedModel
    higher_is_better: bool

    @property
    def ascending(self) -> bool:
        """As the user says."""
        return self.higher_is_better

    @property
    def name(self) -> str:
        """The function's."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def measure(self) -> tuple[float, float]:
        """The score, twice. What the function does to the model is undone: buffers, modes, states,
        new gradients, random state.
        """
        with restored(self.model):
            value = number_of(self.function(self.model), f"{_WHERE}: score {self.name}")
        return value, value
