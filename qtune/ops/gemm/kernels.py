"""The integer operators of a GEMM: one per variant and form, reference and fast kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from qtune.ops.gemm import reference
from qtune.ops.gemm.variants import VARIANTS
from qtune.ops.kernel import FastKernel, HbirKernel, KernelNode

Array = np.ndarray[Any, Any]

PrepareFast = Callable[[KernelNode, int, str], FastKernel]
"""``prepare(node, accumulator_bits, form)`` gives the fast kernel."""


def integer_kernels(
    base: str, accumulate: reference.Accumulate, fast: PrepareFast
) -> Iterator[HbirKernel]:
    """Yield the kernels ``<base><variant><form>``."""
    for kind in VARIANTS:
        for form in kind.forms:
            name = f"{base}{kind.suffix}{form}"
            yield _kernel(name, form, kind.accumulator_bits, accumulate, fast)


def _kernel(
    op_type: str, form: str, bits: int, accumulate: reference.Accumulate, fast: PrepareFast
) -> HbirKernel:
    def run(attrs: Mapping[str, Any], x: Array, w: Array, bias: Array, *rest: Array) -> Array:
        acc = reference.add_bias(accumulate(attrs, x, w), bias, bits)
        if "Add" in form:
            addend, m_addend, n_addend = rest[-3:]
            acc = reference.add_addend(acc, addend, m_addend, n_addend, bits)
        return acc if "Acc" in form else reference.finish(attrs, acc, rest[0], rest[1])

    return HbirKernel(op_type, "qtune", reference=run, fast=lambda node: fast(node, bits, form))
