"""Sensitivity by gradient times error: every fake-quantize from one forward and one backward.

Written ``y = fq(x)`` for what a fake-quantize makes of its value ``x``, ``delta = y - x`` for its
error and ``g`` for the gradient of the loss by ``y``, a loss changes by about ``sum(g * delta)``
because of this one fake-quantize (first order). The error of a weight is taken where it arrives, in
the operator's result: the same sum, as the operator is linear in its weight, for each sample apart.
Source: the tuning tool document, "sensitivity"; spec/api.md, "grad_x_error".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn

from qtune.analysis.ablation import AnyPort, Port, all_ports
from qtune.analysis.float_run import FloatRun, float_run
from qtune.analysis.gradient_taps import Tap, is_float, samples_of, tapped
from qtune.analysis.outputs import ALL, PostProcess, processed
from qtune.analysis.selection import check_selection
from qtune.analysis.sensitivity import HEAD, check_output_names, head_of
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, unflatten
from qtune.errors import AnalysisError, kind_of
from qtune.nn.float_mode import all_float, all_quantizing
from qtune.nn.prepared import PreparedModel
from qtune.ops.op_types import as_names, as_types
from qtune.profiler.metric import MetricInfo
from qtune.profiler.observe import require_torch
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.undisturbed import same_randomness, undisturbed
from qtune.quantizers.scope import not_calibrated

METHOD = "grad_x_error"
SCORE = "GRAD_X_ERROR"
COLUMNS = (SCORE, "GRAD_MAGNITUDE", "ERROR_MAGNITUDE")


def grad_x_error_tables(
    model: nn.Module,
    inputs: Inputs,
    metric: MetricInfo,
    case: str,
    *,
    prefixes: Sequence[str] | None = None,
    types: Sequence[Any] | None = None,
    output_names: Sequence[str] | None = None,
    post_process: PostProcess | None = None,
) -> dict[str, SensitivityTable]:
    """``{"all": table}``: each fake-quantize of a prepared model by what it does to a loss.

    ``metric``: of scope ``all``, called as ``metric(float outputs, quantized outputs)``; returns a
    differentiable tensor of one element. Columns after the head, with ``delta`` and ``g`` of the
    module's text, over all elements and all calls of the operator:

    * ``GRAD_X_ERROR``: ``abs(sum(g * delta))`` of each sample, summed over the batch; the rows are
      sorted by it, the largest first;
    * ``GRAD_MAGNITUDE``: ``sqrt(sum(g ** 2))``;
    * ``ERROR_MAGNITUDE``: ``sqrt(sum(delta ** 2))``.

    With one sample these are the document's formulas. Over a batch one sum would mostly cancel:
    what one sample gains another one loses (measured in docs/analysis.md). A batch is there where
    all float inputs have the same first dimension; a value belongs to samples by that dimension.

    Of one sample the first is at most the product of the others; far below it, errors cancel. The
    working point is the quantized forward: every fake-quantize in VALIDATION, eval mode (at the
    float point the gradient of most losses is 0). Gradients are those of training: they pass the
    rounding, and stop where a value is clamped. A fake-quantize that the loss does not depend on
    has 0.

    Memory: what one training forward keeps, and one ``delta`` per fake-quantize. The model is left
    as it was, whatever happens: hooks, states, flags, gradients and random state. Raises
    ``AnalysisError`` for another scope, and for a loss that is no tensor, not one number or has no
    gradient; ``NotCalibratedError`` names fake-quantizes that never saw data.
    """
    _check_metric(metric)
    prefixes, output_names, types = as_names(prefixes), as_names(output_names), as_types(types)
    whole = require_torch(model, "sensitivity")
    check_selection(whole, prefixes, types)
    check_output_names([ALL], output_names)
    prepared = whole.select_branch(inputs)
    chosen = all_ports(prepared, prefixes, types)
    _check_observed(chosen)
    if not chosen:
        return {}
    with torch.inference_mode(False), undisturbed(prepared):
        run = _float_run(prepared, inputs)
        taps = {port.name: Tap(samples_of(inputs)) for port in chosen}
        with same_randomness(prepared):
            _backward(prepared, inputs, chosen, taps, _Loss(metric, run.outputs, post_process))
    rows = [[*head_of(port, run.flops), *taps[port.name].cells()] for port in chosen]
    table = SensitivityTable([*HEAD, *COLUMNS], rows, SCORE, False, ALL, case)
    return {ALL: table.sort_by_column(SCORE)}


def _check_metric(metric: MetricInfo) -> None:
    if metric.scope != ALL:
        raise AnalysisError(
            f"sensitivity: {METHOD!r} differentiates one loss over all outputs, and the metric "
            f"{metric} has the scope {metric.scope!r}; register one with scope {ALL!r} that returns"
            " a differentiable tensor, or use 'ablation'"
        )


def _check_observed(chosen: Sequence[AnyPort]) -> None:
    quantizing = (port for port in chosen if isinstance(port, Port))
    unobserved = [port.name for port in quantizing if not bool(port.fake_quantize.observed)]
    if unobserved:
        raise not_calibrated(unobserved)


def _float_run(model: PreparedModel, inputs: Inputs) -> FloatRun:
    with all_float(model):
        return float_run(model, inputs)


class _Loss:
    """The user's metric as a function of the quantized outputs, checked."""

    def __init__(self, metric: MetricInfo, baseline: Any, post_process: PostProcess | None) -> None:
        self.metric = metric
        self.baseline = baseline
        self.post_process = post_process

    def __call__(self, outputs: Any) -> Tensor:
        baseline = processed(self.baseline, self.post_process)
        loss = self.metric.function(baseline, processed(outputs, self.post_process))
        problem = _problem(loss)
        if problem:
            raise self.refused(problem)
        return cast(Tensor, loss)

    def refused(self, problem: str) -> AnalysisError:
        """The error for a loss that can't be differentiated."""
        return AnalysisError(
            f"sensitivity: {METHOD!r} needs a metric that returns a differentiable tensor of one "
            f"number, and {self.metric} {problem}"
        )


_CUT = (
    "returned a tensor without a gradient to the quantized outputs (its second argument); leave "
    "out .detach(), argmax and no_grad, in post_process too"
)


def _problem(loss: Any) -> str:
    """What keeps ``loss`` from being differentiated, ``""`` for nothing."""
    if not isinstance(loss, Tensor):
        detail = "" if loss is None else f" {loss!r}"
        return f"returned {kind_of(loss)}{detail}; return the tensor itself, without .item()"
    if loss.numel() != 1:
        return f"returned a tensor of shape {list(loss.shape)}; reduce it, by .mean() for example"
    if not loss.is_floating_point():
        return f"returned {loss.dtype}; rounding, argmax and counting have no gradient"
    return "" if loss.requires_grad else _CUT


def _backward(
    model: PreparedModel,
    inputs: Inputs,
    chosen: Sequence[AnyPort],
    taps: Mapping[str, Tap],
    loss_of: _Loss,
) -> None:
    """Run ``model`` quantized, and let every tap see the gradient at its place."""
    start = torch.zeros((), requires_grad=True)
    with torch.enable_grad(), all_quantizing(model), ExitStack() as places:
        for port in chosen:
            places.enter_context(tapped(port, taps[port.name], start))
        call = _as_constants(inputs)
        outputs = model(*call.args, **call.kwargs)
        leaves, spec = flatten(outputs)
        seen = [Tap()(leaf, None, start) if is_float(leaf) else leaf for leaf in leaves]
        loss = loss_of(unflatten(seen, spec))
        if torch.autograd.grad(loss.reshape(()), [start], allow_unused=True)[0] is None:
            raise loss_of.refused(_CUT)


def _as_constants(inputs: Inputs) -> Inputs:
    """The same call on copies: without a gradient, not made in a user's ``inference_mode``, and
    free for an in-place fake-quantize to overwrite.
    """
    leaves, spec = flatten((inputs.args, dict(inputs.kwargs)))
    copies = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = unflatten(copies, spec)
    return Inputs(*args, **kwargs)
