"""Sensitivity by ablation: everything in float, one fake-quantize at a time switched on.

Variants of a port: ``round`` (only elements in range are fake-quantized), ``clip`` (only elements
out of range are clamped), ``qint8``, ``qint16``, ``fp16``, and ``own`` (its own dtype and scale).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qtune.arith_fast.fake_quantize import clip_only, fake_quantize, round_only
from qtune.capture.inputs import Inputs
from qtune.dtype import qint8, qint16
from qtune.nn.float_mode import all_float
from qtune.nn.qat.op import QATOp, iter_ops, iter_stubs
from qtune.quantizers.fake_quantize import FakeQuantize

__all__ = ["VARIANTS", "Port", "all_float", "outputs_with", "ports", "switched_on", "variant"]

VARIANTS = ("round", "clip", "qint8", "qint16", "fp16")
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
    model: nn.Module, prefixes: Sequence[str] | None = None, types: Sequence[type] | None = None
) -> list[Port]:
    """The ports of ``model``; ``prefixes`` and ``types`` together mean both."""
    ops = {op.name: op for op in iter_ops(model)}
    found = [Port(ops[name], kind, quantizer) for name, kind, quantizer in iter_stubs(model)]
    if prefixes is not None:
        found = [p for p in found if p.op.name.startswith(tuple(prefixes))]
    if types is not None:
        wanted = {t.__qualname__ for t in types}
        found = [p for p in found if isinstance(p.op, tuple(types)) or _float_class(p) in wanted]
    return found


def _float_class(port: Port) -> str:
    return port.op.float_type.rsplit(".", 1)[-1]


@contextmanager
def switched_on(port: Port, transform: Transform) -> Iterator[None]:
    """Let the port's fake-quantize apply ``transform``; everything else stays as it is."""
    handle = port.fake_quantize.register_forward_hook(
        lambda module, args, result: transform(result)
    )
    try:
        yield
    finally:
        handle.remove()


def variant(port: Port, name: str) -> Transform:
    """The transform of a variant; scales of other dtypes follow from the same statistics."""
    own = port.fake_quantize
    if name == "fp16":
        return lambda x: x.half().to(x.dtype)
    if name in ("qint8", "qint16"):
        other = copy.deepcopy(own)
        other.set_dtype(qint8 if name == "qint8" else qint16)
        own = other
    scale, dtype, axis = own.scale.clone(), own.dtype, own.ch_axis
    function = {"round": round_only, "clip": clip_only}.get(name, fake_quantize)
    return lambda x: function(x, scale, dtype.qmin, dtype.qmax, axis)


def outputs_with(model: nn.Module, port: Port, name: str, inputs: Inputs) -> Any:
    """Outputs where only ``port`` is quantized, in one variant (inside :func:`all_float`)."""
    with switched_on(port, variant(port, name)):
        return model(*inputs.args, **inputs.kwargs)
