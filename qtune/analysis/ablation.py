"""Sensitivity by ablation: everything in float, one fake-quantize at a time switched on.

Variants of a port: ``round`` (only elements in range are fake-quantized), ``clip`` (only elements
out of range are clamped), ``qint8``, ``qint16``, ``fp16``, and ``own`` (the port in VALIDATION, as
the deployed model computes it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qtune.arith_fast.fake_quantize import clip_only, fake_quantize, round_only
from qtune.dtype import qint8, qint16
from qtune.nn.qat.op import QATOp, iter_ops, iter_stubs
from qtune.nn.table import TableOp
from qtune.profiler.observe import type_name
from qtune.profiler.op_types import is_one_of
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState

VARIANTS = ("round", "clip", "qint8", "qint16", "fp16")
OWN = "own"
OUTPUT, WEIGHT = "output", "weight"
Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Port:
    """One fake-quantize of a prepared model: ``kind`` is output, weight or input-<n>."""

    op: QATOp
    kind: str
    fake_quantize: FakeQuantize

    @property
    def name(self) -> str:
        """``conv1 weight``."""
        return f"{self.op.name} {self.kind}"


def ports(
    model: nn.Module, prefixes: Sequence[str] | None = None, types: Sequence[Any] | None = None
) -> list[Port]:
    """The ports of ``model``; ``prefixes`` and ``types`` together mean both."""
    ops = {op.name: op for op in iter_ops(model)}
    found = [Port(ops[name], kind, quantizer) for name, kind, quantizer in iter_stubs(model)]
    if prefixes is not None:
        found = [p for p in found if p.op.name.startswith(tuple(prefixes))]
    if types is not None:
        found = [p for p in found if is_one_of(types, p.op.op, p.op.float_type, type_name(p.op))]
    return found


def variant(port: Port, name: str) -> Transform:
    """The transform of a variant; scales of other dtypes follow from the same statistics."""
    if name == "fp16":
        return lambda x: x.half().to(x.dtype)
    own = port.fake_quantize
    dtype = {"qint8": qint8, "qint16": qint16}.get(name, own.dtype)
    if dtype == own.dtype:
        scale = own.scale.detach().clone()
    else:
        scale = own.scale_on(dtype)
    function = {"round": round_only, "clip": clip_only}.get(name, fake_quantize)
    return lambda x: function(x, scale, dtype.qmin, dtype.qmax, own.ch_axis)


@contextmanager
def in_own_state(port: Port) -> Iterator[None]:
    """Let the port quantize as it does in VALIDATION; everything else stays as it is."""
    before = port.fake_quantize.state
    try:
        port.fake_quantize.state = FakeQuantState.VALIDATION
        yield
    finally:
        port.fake_quantize.state = before


@contextmanager
def switched_on(port: Port, transform: Transform) -> Iterator[None]:
    """Let the value at the port pass through ``transform``; everything else stays as it is."""
    handle = _hook(port, transform)
    try:
        yield
    finally:
        handle.remove()


def _hook(port: Port, transform: Transform) -> Any:
    if not isinstance(port.op, TableOp):  # it calls no fake-quantize while it computes in float
        return port.fake_quantize.register_forward_hook(lambda m, args, result: transform(result))
    if port.kind == OUTPUT:
        return port.op.register_forward_hook(lambda m, args, result: transform(result))
    return port.op.register_forward_pre_hook(lambda m, args: (transform(args[0]), *args[1:]))


class Recording:
    """The values that come to ports while a model runs, by port name, in order.

    ``paused`` stops it; :meth:`clear` lets the values go.
    """

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}
        self.paused = False

    def clear(self) -> None:
        """Forget everything recorded until now."""
        self.values.clear()

    def noting(self, name: str) -> Transform:
        """A transform that records its value and changes nothing."""

        def note(x: Tensor) -> Tensor:
            if not self.paused:
                self.values.setdefault(name, []).append(x)
            return x

        return note


@contextmanager
def recorded(chosen: Sequence[Port]) -> Iterator[Recording]:
    """Record the values at the ports; leave no hook behind."""
    recording = Recording()
    handles: list[Any] = []
    try:
        for port in chosen:
            handles.append(_hook(port, recording.noting(port.name)))
        yield recording
    finally:
        for handle in handles:
            handle.remove()
