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
from qtune.errors import AnalysisError
from qtune.nn.qat.op import QATOp, iter_ops, iter_ports
from qtune.nn.table import TableOp
from qtune.ops.op_types import is_one_of
from qtune.profiler.observe import type_name
from qtune.quantizers.fake_cast import FakeCast
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


@dataclass(frozen=True, slots=True)
class CastPort:
    """A place where a prepared model rounds to float16: no grid, no scale, no statistics."""

    op: QATOp
    kind: str
    fake_quantize: FakeCast

    @property
    def name(self) -> str:
        """``softmax output``."""
        return f"{self.op.name} {self.kind}"


AnyPort = Port | CastPort


def ports(
    model: nn.Module, prefixes: Sequence[str] | None = None, types: Sequence[Any] | None = None
) -> list[Port]:
    """The fake-quantizes of ``model``; ``prefixes`` and ``types`` together mean both."""
    return [port for port in all_ports(model, prefixes, types) if isinstance(port, Port)]


def all_ports(
    model: nn.Module, prefixes: Sequence[str] | None = None, types: Sequence[Any] | None = None
) -> list[AnyPort]:
    """As :func:`ports`, with the casts to float16, in order of execution."""
    ops = {op.name: op for op in iter_ops(model)}
    return [
        Port(ops[name], kind, module)
        if isinstance(module, FakeQuantize)
        else CastPort(ops[name], kind, module)
        for name, kind, module in iter_ports(model)
        if is_selected(ops[name], prefixes, types)
    ]


def is_selected(op: QATOp, prefixes: Sequence[str] | None, types: Sequence[Any] | None) -> bool:
    """Whether the name of ``op`` has one of ``prefixes``, and it is of one of ``types``."""
    if prefixes is not None and not op.name.startswith(tuple(prefixes)):
        return False
    return types is None or is_one_of(types, op.op, op.float_type, type_name(op))


def own(port: AnyPort) -> Transform:
    """What the port makes of a value in VALIDATION."""

    def transform(x: Tensor) -> Tensor:
        with in_own_state(port):
            # a fake-quantize may overwrite what it gets
            result: Tensor = port.fake_quantize(x.clone())
            return result

    return transform


def variant(port: AnyPort, name: str) -> Transform:
    """The transform of a variant; scales of other dtypes follow from the same statistics."""
    if name == "fp16":
        return lambda x: x.half().to(x.dtype)
    if isinstance(port, CastPort):
        raise AnalysisError(f"{port.name} has no statistics, so there is no {name} of it")
    quantizer = port.fake_quantize
    dtype = {"qint8": qint8, "qint16": qint16}.get(name, quantizer.dtype)
    if dtype == quantizer.dtype:
        scale = quantizer.scale.detach().clone()
    else:
        scale = quantizer.scale_on(dtype)
    function = {"round": round_only, "clip": clip_only}.get(name, fake_quantize)
    return lambda x: function(x, scale, dtype.qmin, dtype.qmax, quantizer.ch_axis)


@contextmanager
def in_own_state(port: AnyPort) -> Iterator[None]:
    """Let the port quantize as it does in VALIDATION; everything else stays as it is."""
    before = port.fake_quantize.state
    try:
        port.fake_quantize.state = FakeQuantState.VALIDATION
        yield
    finally:
        port.fake_quantize.state = before


@contextmanager
def switched_on(port: AnyPort, transform: Transform) -> Iterator[None]:
    """Let the value at the port pass through ``transform``; everything else stays as it is."""
    handle = _hook(port, transform)
    try:
        yield
    finally:
        handle.remove()


def _hook(port: AnyPort, transform: Transform) -> Any:
    if not isinstance(port.op, TableOp):  # it calls no fake-quantize while it computes in float
        return port.fake_quantize.register_forward_hook(lambda m, args, result: transform(result))
    if port.kind == OUTPUT:
        return port.op.register_forward_hook(lambda m, args, result: transform(result))
    return port.op.register_forward_pre_hook(lambda m, args: (transform(args[0]), *args[1:]))


class Recording:
    """The values that come to ports while a model runs, by port name, in order."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}

    def noting(self, name: str) -> Transform:
        """A transform that records its value and changes nothing."""

        def note(x: Tensor) -> Tensor:
            self.values.setdefault(name, []).append(x)
            return x

        return note


@contextmanager
def recorded(chosen: Sequence[AnyPort]) -> Iterator[Recording]:
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
