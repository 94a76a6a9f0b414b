"""Sensitivity by gradient times error: every fake-quantize from one forward and one backward.

Written ``y = fq(x)`` for what a fake-quantize makes of its value ``x``, ``delta = y - x`` for its
error and ``g`` for the gradient of the loss by ``y``, a loss changes by about ``sum(g * delta)``
because of this one fake-quantize (first order). The error of a weight is taken where it arrives, in
the operator's result: the same sum, as the operator is linear in its weight, for each sample apart.
Source: the tuning tool document, "sensitivity"; spec/api.md, "grad_x_error".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from qtune.analysis.ablation import WEIGHT, Port, ports
from qtune.analysis.outputs import ALL, PostProcess
from qtune.analysis.sensitivity import HEAD, check_output_names, flops_of, head_of
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, unflatten
from qtune.errors import AnalysisError
from qtune.nn.float_mode import all_float, all_quantizing
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import MetricInfo
from qtune.profiler.observe import Observation, observe_graph, require_torch
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

    * ``GRAD_X_ERROR``: ``abs(sum(g * delta))`` of each sample, summed over the batch;
      the rows are sorted by it, the largest first;
    * ``GRAD_MAGNITUDE``: ``sqrt(sum(g ** 2))``;
    * ``ERROR_MAGNITUDE``: ``sqrt(sum(delta ** 2))``.

    With one sample these are the document's formulas. Over a batch one sum would mostly cancel:
    what one sample gains another one loses (measured in docs/analysis.md). A batch is there where
    all float inputs have the same first dimension; a value belongs to samples by that dimension.

    The first of a sample is at most the product of the others; far below it, errors cancel. The
    working point
    is the quantized forward: every fake-quantize in VALIDATION, eval mode (at the float point the
    gradient of most losses is 0). Gradients are those of training: they pass the rounding, and stop
    where a value is clamped. A fake-quantize that the loss does not depend on has 0.

    Memory: what one training forward keeps, and one ``delta`` per fake-quantize. The model is left
    as it was, whatever happens: hooks, states, flags, gradients and random state. Raises
    ``AnalysisError`` for another scope, and for a loss that is no tensor, not one number or has no
    gradient; ``NotCalibratedError`` names fake-quantizes that never saw data.
    """
    _check_metric(metric)
    prepared = require_torch(model, "sensitivity").select_branch(inputs)
    chosen = ports(prepared, prefixes, types)
    check_output_names([ALL], output_names)
    unobserved = [p.name for p in chosen if not bool(p.fake_quantize.observed)]
    if unobserved:
        raise not_calibrated(unobserved)
    if not chosen:
        return {}
    with torch.inference_mode(False), undisturbed(prepared):
        run = _float_run(prepared, inputs)
        samples = _samples(inputs)
        taps = {port.name: _Tap(samples) for port in chosen}
        with same_randomness(prepared):
            _backward(prepared, inputs, chosen, taps, _Loss(metric, run.outputs, post_process))
    flops = flops_of(prepared, run)
    rows = [[*head_of(port, flops), *taps[port.name].cells()] for port in chosen]
    table = SensitivityTable([*HEAD, *COLUMNS], rows, SCORE, False, ALL, case)
    return {ALL: table.sort_by_column(SCORE)}


def _check_metric(metric: MetricInfo) -> None:
    if metric.scope != ALL:
        raise AnalysisError(
            f"sensitivity: {METHOD!r} differentiates one loss over all outputs, and the metric "
            f"{metric} has the scope {metric.scope!r}; register one with scope {ALL!r} that returns"
            " a differentiable tensor, or use 'ablation'"
        )


def _float_run(model: PreparedModel, inputs: Inputs) -> Observation:
    with all_float(model), same_randomness(model):
        return observe_graph(model, inputs)


class _Loss:
    """The user's metric as a function of the quantized outputs, checked."""

    def __init__(self, metric: MetricInfo, baseline: Any, post_process: PostProcess | None) -> None:
        self.metric = metric
        self.baseline = baseline
        self.post_process = post_process

    def __call__(self, outputs: Any) -> Tensor:
        baseline = self.baseline
        if self.post_process is not None:
            baseline, outputs = self.post_process(baseline), self.post_process(outputs)
        loss = self.metric.function(baseline, outputs)
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
        return f"returned {type(loss).__name__} {loss!r}; return the tensor itself, without .item()"
    if loss.numel() != 1:
        return f"returned a tensor of shape {list(loss.shape)}; reduce it, by .mean() for example"
    if not loss.is_floating_point():
        return f"returned {loss.dtype}; rounding, argmax and counting have no gradient"
    return "" if loss.requires_grad else _CUT


def _backward(
    model: PreparedModel,
    inputs: Inputs,
    chosen: Sequence[Port],
    taps: dict[str, _Tap],
    loss_of: _Loss,
) -> None:
    """Run ``model`` quantized, and let every tap see the gradient at its place.

    All taps hang on one scalar that is the only thing differentiated by, so that no gradient is
    computed for a parameter, and none is stored.
    """
    start = torch.zeros((), requires_grad=True)
    with torch.enable_grad(), all_quantizing(model), ExitStack() as tapped:
        for port in chosen:
            tapped.enter_context(_tapped(port, taps[port.name], start))
        call = _as_constants(inputs)
        outputs = model(*call.args, **call.kwargs)
        leaves, spec = flatten(outputs)
        seen = [_Tap()(leaf, None, start) if _is_float(leaf) else leaf for leaf in leaves]
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


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


@contextmanager
def _tapped(port: Port, tap: _Tap, start: Tensor) -> Iterator[None]:
    """Let ``tap`` see every value of the port."""
    if port.kind == WEIGHT:
        with _weight_tapped(port, tap, start):
            yield
        return
    originals: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        # an in-place fake-quantize overwrites what it is given
        originals.append(args[0].clone() if port.fake_quantize.in_place else args[0])

    def after(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor:
        return tap(result, originals.pop(), start)

    handles: list[Any] = []
    try:
        handles.append(port.fake_quantize.register_forward_pre_hook(before))
        handles.append(port.fake_quantize.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _weight_tapped(port: Port, tap: _Tap, start: Tensor) -> Iterator[None]:
    """Let ``tap`` see what the quantized weight changes in the operator's result.

    Around the operator's own steps: a batch norm that is kept quantizes the folded weight without
    calling the module.
    """
    op = port.op
    quantize, compute = op.quantize_weight, op.compute
    originals: list[Tensor] = []

    def quantize_weight(weight: Tensor, attrs: Mapping[str, Any]) -> Tensor:
        originals.append(weight.detach())
        return quantize(weight, attrs)

    def compute_and_see(values: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        result = compute(values, attrs)
        exact = list(values)
        exact[op.weight_index] = originals.pop().to(values[op.weight_index].dtype)
        with torch.no_grad():
            reference = compute(exact, attrs)
        return tap(result, reference, start)

    own = vars(op)
    try:
        own["quantize_weight"], own["compute"] = quantize_weight, compute_and_see
        yield
    finally:
        own.pop("quantize_weight", None)
        own.pop("compute", None)


def _samples(inputs: Inputs) -> int:
    """How many samples the batch has: the first dimension of all float inputs, else 1."""
    leaves, _ = flatten((inputs.args, dict(inputs.kwargs)))
    sizes = {leaf.shape[0] if leaf.dim() else 1 for leaf in leaves if _is_float(leaf)}
    return max(sizes.pop(), 1) if len(sizes) == 1 else 1


class _Tap:
    """Sums over gradient and error at one place, over all calls, for each of ``samples``."""

    def __init__(self, samples: int = 1) -> None:
        self._products = torch.zeros(samples, dtype=torch.float64)
        self._gradients = self._errors = 0.0

    def __call__(self, value: Tensor, original: Tensor | None, start: Tensor) -> Tensor:
        """``value`` again, on the way of the gradient; ``original``: what it is without error."""
        delta = None if original is None else value.detach() - original.detach()
        if delta is not None:
            self._errors += _sum_of_squares(delta)
        start = start.to(value.device)
        return cast(Tensor, _See.apply(value, start, self, delta))  # type: ignore[no-untyped-call]

    def take(self, gradient: Tensor, delta: Tensor) -> None:
        """Add one call's gradient."""
        self._products += _per_sample(gradient * delta, len(self._products)).cpu()
        self._gradients += _sum_of_squares(gradient)

    def cells(self) -> list[float]:
        """The three columns."""
        score = float(self._products.abs().sum())
        return [score, math.sqrt(self._gradients), math.sqrt(self._errors)]


def _per_sample(product: Tensor, samples: int) -> Tensor:
    """The sum over the elements of each sample, float64 [samples] or [1].

    Of ``[B * n, ...]`` a sample has ``n`` rows. Values that have no such dimension (parameters, a
    batch in another place) count as one sample's.
    """
    if product.dim() == 0 or product.shape[0] % samples:
        return product.sum(dtype=torch.float64).reshape(1) / samples
    return product.reshape(samples, -1).sum(1, dtype=torch.float64)


def _sum_of_squares(values: Tensor) -> float:
    return float(values.square().sum(dtype=torch.float64))


class _See(torch.autograd.Function):
    """The first argument; shows its gradient to a tap."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, start: Tensor, tap: _Tap, delta: Tensor | None) -> Tensor:
        ctx.tap, ctx.start = tap, start
        ctx.save_for_backward(delta)
        return value.clone()  # a later operator may change it in place

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (delta,) = ctx.saved_tensors
        if delta is not None:
            ctx.tap.take(grads[0], delta)
        return grads[0], torch.zeros_like(ctx.start), None, None
