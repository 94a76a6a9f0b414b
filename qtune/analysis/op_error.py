"""What each operator of the analysed model adds to the error: it gets what the baseline computed.

An error that comes from further ahead does not count, so the numbers point at operators, where
those of a whole run only grow with depth. A fused group is one operator, under the name of its last
member; the quantization of its weights counts in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.analysis.own_error import own_results
from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError, ConvertError, kind_of
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.nn.propagate import value_quantizers
from qtune.nn.quantized.qtensor import QTensor
from qtune.prepare.fuse import GROUP
from qtune.profiler.metric import MetricInfo
from qtune.profiler.observe import Model, is_converted, run_replacing
from qtune.profiler.op_results import grid_of, numbered_results, real_numbers
from qtune.profiler.pair_sums import TOP, PairSums, channel_energies, distance, sums_for, sums_of
from qtune.profiler.record import Observation, OpRecord
from qtune.quantization.deploy import recording_of

_log = logging.getLogger("qtune.analysis")


@dataclass(frozen=True, slots=True)
class OpError:
    """The own error of one operator: its result on the baseline's input against the baseline's.

    ``metrics``: by name, ``None`` where there is nothing to compare. ``steps``: the largest
    difference in output scales, ``None`` without a scale. ``channel_sqnr``: the median over the
    channels (dimension 1) of ``10 log10(sum(a ** 2) / sum((a - b) ** 2))`` in dB, ``None`` below
    two dimensions.
    """

    name: str
    metrics: Mapping[str, float | None]
    steps: float | None
    channel_sqnr: float | None

    @classmethod
    def of(
        cls, name: str, a: Tensor, b: Tensor, scale: float | None, metrics: Sequence[MetricInfo]
    ) -> OpError:
        """``a``: the baseline's result, ``b``: the operator's on the same input."""
        if not (b.is_floating_point() or b.is_complex()):
            return cls(name, {m.name: None for m in metrics}, None, None)
        sums = sums_of(a, b, sums_for(metrics) | TOP)
        found = {m.name: distance(m, a, b, sums) for m in metrics}
        steps = None if sums is None or not scale else sums.largest / scale
        return cls(name, found, steps, None if sums is None else channel_sqnr(a, b, sums))


def op_errors(
    baseline: Observation, analysed: Model, inputs: Inputs, metrics: Sequence[MetricInfo]
) -> dict[str, OpError]:
    """The own errors of all operators that both models have, by the names of the records.

    ``analysed`` runs once; results of the baseline are read one by one. A prepared or converted
    model runs as it is (:func:`~qtune.profiler.undisturbed.undisturbed` is the caller's).
    """
    if isinstance(analysed, HbirModule):
        return _of_hbir(baseline, analysed, inputs, metrics)
    if not isinstance(analysed, GraphModel):
        if is_converted(analysed):
            return _of_eager(baseline, analysed, inputs, metrics)
        raise AnalysisError(
            f"own errors need a model with a graph, got {kind_of(analysed)}; pass what "
            "prepare, pre_export, export or convert returned"
        )
    forced = _Forced(analysed, baseline.records, metrics)
    run_replacing(analysed, inputs, forced)
    return forced.found


def _of_eager(
    baseline: Observation, converted: nn.Module, inputs: Inputs, metrics: Sequence[MetricInfo]
) -> dict[str, OpError]:
    """Converted operators without a graph: as the module that they form, where they form one."""
    try:
        module = recording_of(converted, inputs, "own errors").module()
    except ConvertError as error:
        _log.info("there are no errors with the same input: %s", error)
        return {}
    return _of_hbir(baseline, module, inputs, metrics)


def _of_hbir(
    baseline: Observation, module: HbirModule, inputs: Inputs, metrics: Sequence[MetricInfo]
) -> dict[str, OpError]:
    feed: dict[str, Tensor] = bind_call(module[0], inputs.args, dict(inputs.kwargs))
    found: dict[str, OpError] = {}
    try:
        for name, result, reference in own_results(baseline, feed, module):
            found[name] = OpError.of(name, reference, result.values, result.scale, metrics)
    except AnalysisError as error:
        _log.warning("own errors end before an operator that can't be fed: %s", error)
    return found


class _Forced:
    """Measures every result of a running graph, then lets the baseline's go on in its place."""

    def __init__(
        self, model: GraphModel, baseline: Mapping[str, OpRecord], metrics: Sequence[MetricInfo]
    ) -> None:
        self.baseline = baseline
        self.metrics = metrics
        self.found: dict[str, OpError] = {}
        self._quantizers = value_quantizers(model)
        self._seen: set[str] = set()

    def __call__(self, node: fx.Node, name: str, result: Any) -> Any:
        is_last = node.meta.get(GROUP, name) == name
        items = list(result) if isinstance(result, tuple | list) else [result]
        for key, place, value in numbered_results(name, result, self._seen):
            self._seen.add(key)
            reference = self.baseline.get(key) if is_last else None
            if reference is not None and reference.value.shape == value.shape:
                items[place] = self._measured(key, node, value, reference.value)
        if not isinstance(result, tuple | list):
            return items[0]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)

    def _measured(self, key: str, node: fx.Node, value: Tensor, reference: Tensor) -> Tensor:
        """What goes on instead of ``value``: the baseline's, in the form of ``value``."""
        own = real_numbers(value)
        scale, _ = grid_of(self._quantizers.get(node), value)
        known = reference.to(own.device)
        self.found[key] = OpError.of(key, known, own, scale, self.metrics)
        if isinstance(value, QTensor):
            codes = QTensor.quantize(known, value.scales[0], value.dtype)
            codes.table_source = value.table_source
            return codes
        return known.to(own.dtype)


def channel_sqnr(a: Tensor, b: Tensor, sums: PairSums | None = None) -> float | None:
    """See :attr:`OpError.channel_sqnr`; channels without signal and noise do not count.

    ``sums``: those of the two, where they are known.
    """
    if a.dim() < 2 or a.numel() == 0:
        return None
    signal, noise = channel_energies(a, b, sums)
    some = (signal > 0) | (noise > 0)
    if not bool(some.any()):
        return math.inf
    return float((10 * torch.log10(signal[some] / noise[some])).median())
