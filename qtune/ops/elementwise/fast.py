"""What the fast kernels of integer nodes share: operands, constants and output of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import offset, to_held
from qtune.arith_fast.requantize import Requantizer
from qtune.errors import RegistryError
from qtune.ops.kernel import Attrs, FastKernel, HbirKernel, KernelNode
from qtune.ops.quant.codes import held_quant_dtype, input_dtype, output_dtype

Take = Callable[[tuple[torch.Tensor, ...]], list[torch.Tensor]]


def requantizer(
    node: KernelNode, m: Any, n: Any, bias: Any = None, *, bound: int, zero: int = 0
) -> Requantizer:
    """The requantize at the end of a node: into its output dtype, between its lo and hi."""
    return Requantizer(
        m,
        n,
        bias,
        lo=node.attrs["lo"],
        hi=node.attrs["hi"],
        out=output_dtype(node),
        bound=bound,
        zero=zero,
    )


def sum_kernel(
    node: KernelNode, indices: Sequence[int], multipliers: Sequence[int], constant: int, n: int
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """``clip((sum of m * code + constant + half) >> n, lo, hi)`` of the held operands."""
    dtypes = [input_dtype(node, index) for index in indices]
    pairs = list(zip(multipliers, dtypes, strict=True))
    held_too_much = sum(m * offset(dtype) for m, dtype in pairs)
    bound = 2 * sum(abs(m) * -dtype.qmin for m, dtype in pairs)
    step = requantizer(node, 1, n, constant - held_too_much, bound=bound)
    return lambda tensors: step.weighted_sum(tensors, multipliers)


def taker(node: KernelNode, indices: Sequence[int]) -> Take:
    """Return what picks the operands ``indices`` of a call: arguments, or constants in held form.

    A kernel is called with the inputs that are no constants, in order.
    """
    dynamic = [i for i, dtype in enumerate(node.input_dtypes) if dtype and i not in node.constants]
    place = {index: position for position, index in enumerate(dynamic)}
    fixed = {i: _held_constant(node, i) for i in indices if i in node.constants}
    return lambda args: [fixed[i] if i in fixed else args[place[i]] for i in indices]


def _held_constant(node: KernelNode, index: int) -> torch.Tensor:
    array, dtype = node.constants[index], node.input_dtypes[index]
    if dtype in ("int8", "int16"):
        return to_held(array, held_quant_dtype(dtype))
    return torch.from_numpy(np.array(array))


def number(node: KernelNode, index: int) -> int:
    """An int64 scalar constant of a node."""
    return int(node.constants[index].reshape(()))


def is_number(node: KernelNode, index: int) -> bool:
    """Whether an operand is a number brought to the common shift instead of codes."""
    return node.input_dtypes[index] == "int64"


def clipped(attrs: Attrs, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``values`` between the attributes lo and hi."""
    return np.asarray(np.clip(values, attrs["lo"], attrs["hi"]))


def run_everywhere(kernel: HbirKernel) -> HbirKernel:
    """A float kernel of our domain that also runs in what stays float after convert."""
    run = kernel.run_float
    if run is None:
        raise RegistryError(f"{kernel.op_type} has no float kernel to run")
    run_float = run

    def reference(attrs: Attrs, *arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        tensors = [torch.from_numpy(np.asarray(array, order="C")) for array in arrays]
        return np.asarray(run_float(attrs, *tensors).numpy())

    def fast(node: KernelNode) -> FastKernel:
        take = taker(node, range(len(node.input_dtypes)))
        return lambda *args: run_float(node.attrs, *take(args))

    return replace(kernel, reference=reference, fast=fast)
