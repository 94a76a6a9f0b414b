"""Taps: they see value, error and gradient at places of a prepared model, and change nothing.

All taps of a run hang on one scalar, ``start``. A gradient taken by it alone passes every tap, and
none is computed for, or stored at, a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from qtune.analysis.ablation import WEIGHT, AnyPort, Port
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten


def is_float(value: Any) -> bool:
    """Whether a gradient can come to ``value``."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


@contextmanager
def tapped(port: AnyPort, tap: Tap, start: Tensor) -> Iterator[None]:
    """Let ``tap`` see every value of the port."""
    if port.kind == WEIGHT:
        with _weight_tapped(port, tap, start):
            yield
        return
    originals: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        # an in-place fake-quantize overwrites what it is given
        in_place = isinstance(port, Port) and port.fake_quantize.in_place
        originals.append(args[0].clone() if in_place else args[0])

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
def _weight_tapped(port: AnyPort, tap: Tap, start: Tensor) -> Iterator[None]:
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


def samples_of(inputs: Inputs) -> int:
    """How many samples the batch has: the first dimension of all float inputs, else 1."""
    leaves, _ = flatten((inputs.args, dict(inputs.kwargs)))
    sizes = {leaf.shape[0] if leaf.dim() else 1 for leaf in leaves if is_float(leaf)}
    return max(sizes.pop(), 1) if len(sizes) == 1 else 1


class Tap:
    """Sums over gradient and error at one place, over all calls, for each of ``samples``."""

    def __init__(self, samples: int = 1) -> None:
        self._products = torch.zeros(samples, dtype=torch.float64)
        self._gradients = self._errors = 0.0

    def __call__(self, value: Tensor, original: Tensor | None, start: Tensor) -> Tensor:
        """``value`` again, on the way of the gradient; ``original``: what it is without error."""
        delta = None
        if original is not None and value.numel():
            delta = value.detach() - original.detach()
            self._errors += _sum_of_squares(delta)
        start = start.to(value.device)
        return cast(Tensor, _See.apply(value, start, self, delta))  # type: ignore[no-untyped-call]

    def take(self, gradient: Tensor, delta: Tensor) -> None:
        """Add one call's gradient."""
        self._products += _per_sample(gradient, delta, len(self._products)).cpu()
        self._gradients += _sum_of_squares(gradient)

    def cells(self) -> list[float]:
        """The three columns."""
        score = float(self._products.abs().sum())
        return [score, math.sqrt(self._gradients), math.sqrt(self._errors)]


def _per_sample(gradient: Tensor, delta: Tensor, samples: int) -> Tensor:
    """``sum(gradient * delta)`` over the elements of each sample, float64 [samples] or [1].

    Of ``[B * n, ...]`` a sample has ``n`` rows. Values that have no such dimension (parameters, a
    batch in another place) count as one sample's. Sums are those of BLAS, in float32 at least.
    """
    if gradient.dim() == 0 or gradient.shape[0] % samples:
        return _dot(gradient, delta).reshape(1) / samples
    rows = zip(gradient.reshape(samples, -1), delta.reshape(samples, -1), strict=True)
    return torch.stack([_dot(*row) for row in rows])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    dtype = torch.promote_types(a.dtype, torch.float32)
    return torch.dot(a.reshape(-1).to(dtype), b.reshape(-1).to(dtype)).double()


def _sum_of_squares(values: Tensor) -> float:
    return float(_dot(values, values))


class _See(torch.autograd.Function):
    """The first argument; shows its gradient to a tap."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, start: Tensor, tap: Tap, delta: Tensor | None) -> Tensor:
        ctx.tap, ctx.start = tap, start
        ctx.save_for_backward(delta)
        return value.clone()  # a later operator may change it in place

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (delta,) = ctx.saved_tensors
        if delta is not None:
            ctx.tap.take(grads[0], delta)
        return grads[0], torch.zeros_like(ctx.start), None, None
