"""What each operator of one stage makes of the values that another stage computed.

Nothing accumulates: the model runs once, and behind every operator (or fused group) it goes on with
the other stage's result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from qtune.analysis.own_error import own_errors
from qtune.capture.inputs import Inputs
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import Model, observe_graph
from qtune.profiler.observe_converted import is_converted, observe_converted
from qtune.profiler.record import Observation


def results_on_same_input(
    model: Model, inputs: Inputs, baseline: Observation
) -> Mapping[str, Tensor]:
    """Operator -> its result on the values of ``baseline``; members inside a group are left out.

    Empty for a float model, whose operators are the baseline's own.
    """
    if isinstance(model, HbirModule):
        feed = bind_call(model[0], inputs.args, dict(inputs.kwargs))
        return {name: error.value for name, error in own_errors(baseline, feed, model).items()}
    forced = _Forced(baseline)
    if isinstance(model, nn.Module) and is_converted(model):
        observe_converted(model, inputs, replace=forced)
    elif isinstance(model, PreparedModel):
        groups = {node.meta["name"]: node.meta.get("group") for node, _ in model.operators()}
        forced.inside = {name for name, group in groups.items() if group not in (None, name)}
        observe_graph(model, inputs, replace=lambda node, name, value: forced(name, value))
    return forced.results


class _Forced:
    """Notes a result and gives the baseline's in its place."""

    def __init__(self, baseline: Observation) -> None:
        self.baseline = baseline
        self.inside: set[str] = set()
        self.results: dict[str, Tensor] = {}
        self._calls: Counter[str] = Counter()

    def __call__(self, name: str, value: Any) -> Any:
        if name in self.inside:
            return value
        number = self._calls[name]
        self._calls[name] += 1
        base = f"{name}_{number}" if number else name
        if isinstance(value, tuple | list):
            return type(value)(self._items(base, value))
        return self._item(base, value)

    def _items(self, base: str, values: Any) -> Iterator[Any]:
        for index, value in enumerate(values):
            yield self._item(f"{base}:{index}" if index else base, value)

    def _item(self, key: str, value: Any) -> Any:
        record = self.baseline.records.get(key)
        if not isinstance(value, Tensor):
            return value
        self.results[key] = value.detach().clone()
        if record is None or record.value.shape != value.shape:
            return value
        return record.value.to(value.device, value.dtype).clone()
