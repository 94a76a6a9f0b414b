"""What this CPU computes exactly, and the guard that pins float32 arithmetic (numerics.md 7)."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from qtune.arith_fast import onednn
from qtune.arith_fast.native import engine

INT8_SWITCH = "QTUNE_INT8"
"""Environment variable: ``off`` keeps the kernels away from oneDNN's int8 forms."""


def int8_exact() -> bool:
    """Return whether oneDNN's int8 kernels may be used: VNNI or AMX there, and proven exact.

    The self-test runs once per process. ``QTUNE_INT8=off`` answers False.
    """
    if os.environ.get(INT8_SWITCH, "").lower() == "off":
        return False
    return _flags_promise_exactness() and _self_test()


def provenance() -> dict[str, Any]:
    """Return what decides bits and speed here, for reports and baselines."""
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "integer_kernels": "onednn-int8" if int8_exact() else "float32",
        "compiled_kernels": engine.describe(),
        "threads": torch.get_num_threads(),
    }


@contextmanager
def guard() -> Iterator[None]:
    """Pin IEEE float32, no autocast, no NNPACK, no gradients; restore the user's flags after."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch.backends.nnpack.flags(enabled=False))
        stack.enter_context(_ieee_precision())
        yield


@contextmanager
def _ieee_precision() -> Iterator[None]:
    settings = [
        (torch.backends.mkldnn, "fp32_precision"),
        (getattr(torch.backends.mkldnn, "conv", None), "fp32_precision"),
        (getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"),
    ]
    before = [(o, k, getattr(o, k)) for o, k in settings if o is not None and hasattr(o, k)]
    try:
        for owner, key, _ in before:
            setattr(owner, key, "ieee")
        yield
    finally:
        for owner, key, value in before:
            setattr(owner, key, value)


def _flags_promise_exactness() -> bool:
    """Whether the CPU adds four byte products in 32 bits (older ones saturate pairs at 16)."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is not None:
        found = capabilities()
        return any(found.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))
    older = getattr(torch.cpu, "_is_vnni_supported", None)
    return bool(older()) if older is not None else False


@functools.cache
def _self_test() -> bool:
    """Largest bytes and weights through every form of kernel in use, against float64."""
    if not onednn.available():
        return False
    try:
        with guard():
            return all(_conv_is_exact(*form) for form in _CONV_FORMS) and _linear_is_exact()
    except RuntimeError:  # an operator that this build or CPU refuses
        return False


_CONV_FORMS = (
    (16, 16, 3, 1, 1),
    (3, 16, 3, 2, 1),
    (64, 32, 1, 1, 1),
    (32, 32, 3, 1, 32),
    (16, 8, 3, 1, 2),
)
"""Channels in and out, kernel size, stride, groups."""


def _conv_is_exact(inputs: int, outputs: int, size: int, stride: int, groups: int) -> bool:
    w = torch.full((outputs, inputs // groups, size, size), 127, dtype=torch.int8)
    w[1::2] = -128
    x = torch.full((2, inputs, 9, 9), 255, dtype=torch.uint8)
    x[1, :, ::2] = 0
    pad = [size // 2, size // 2]
    for zero in (0, 128):
        kernel = onednn.Int8Conv(w, zero, [stride, stride], pad, [1, 1], groups)
        found = kernel(x.contiguous(memory_format=torch.channels_last))
        exact = F.conv2d(x.double() - zero, w.double(), None, stride, pad, 1, groups)
        if not torch.equal(found.double(), exact):
            return False
    return True


def _linear_is_exact() -> bool:
    w = torch.full((24, 96), 127, dtype=torch.int8)
    w[1::2] = -128
    x = torch.full((5, 96), 255, dtype=torch.uint8)
    x[1] = 0
    return all(
        torch.equal(onednn.Int8Linear(w, zero)(x).double(), (x.double() - zero) @ w.double().t())
        for zero in (0, 128)
    )
