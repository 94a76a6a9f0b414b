"""Runs under one instruction set: the sums at their extremes, and recorded integer models.

``python -m tests.arith_fast.isa_run [FILE]`` prints what differed, as JSON. FILE holds, from
``torch.save``, a list of ``(name, bytes of quantized.bc, inputs, expected results)``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.capability import int8_exact, provenance
from qtune.arith_fast.gemm import conv2d_kernel, linear_kernel
from qtune.arith_fast.held import from_held, to_held
from qtune.dtype import qint8, qint16
from qtune.hbir.serialize import from_bytes
from tests.arith_fast.oracle import conv_sum, finish

CONVS = (
    (32, 16, 3, 1, 1),
    (3, 16, 3, 2, 1),
    (16, 16, 3, 1, 16),
    (64, 24, 1, 1, 1),
    (8, 8, 3, 1, 2),
)
"""Inputs, outputs, kernel size, stride, groups."""


def wrong_sums() -> list[Any]:
    """Convolutions of the largest codes and of random ones, against int64."""
    rng, wrong = np.random.default_rng(0), []
    for source in (qint8, qint16):
        for inputs, outputs, size, stride, groups in CONVS:
            for extreme in (True, False):
                w = np.full((outputs, inputs // groups, size, size), 127)
                x = np.full((2, inputs, 9, 9), source.qmax)
                if not extreme:
                    w = rng.integers(-128, 128, size=w.shape)
                    x = rng.integers(source.qmin, source.qmax + 1, size=x.shape)
                pad = (size // 2,) * 4
                acc = conv_sum(x, w, (stride, stride), pad, (1, 1), groups)
                bias = rng.integers(-1000, 1000, size=outputs)
                m, n = rng.integers(2**14, 2**15, size=outputs), source.bits + 16
                kernel = conv2d_kernel(
                    w, bias, m, n, (stride, stride), pad, groups=groups, in_dtype=source
                )
                expected = finish(acc, bias, m, [n] * outputs, -128, 127)
                if not np.array_equal(from_held(kernel(to_held(x, source))), expected):
                    wrong.append([str(source), inputs, outputs, size, stride, groups, extreme])
    x, w = np.full((3, 1200), -128), np.full((5, 1200), 127)
    acc = linear_kernel(w, 0, None, None, out_dtype="int32")(to_held(x, qint8))
    return wrong if np.array_equal(from_held(acc), x @ w.T) else [*wrong, ["linear"]]


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with a gap between any two."""
    wide = torch.zeros(*x.shape, 2, dtype=x.dtype)
    wide[..., 0] = x
    return wide[..., 0]


def forms(x: torch.Tensor) -> list[torch.Tensor]:
    """An input in other memory orders."""
    last = [x.contiguous(memory_format=torch.channels_last)] if x.dim() == 4 else []
    return [x, strided(x), *last]


def wrong_models(path: str) -> list[Any]:
    """Recorded models whose results differ, in any memory order, on one thread or two."""
    wrong = []
    for name, content, inputs, expected in torch.load(path, weights_only=True):
        function = from_bytes(content, name)[0]
        for index, threads in enumerate((1, 1, 2)):
            torch.set_num_threads(threads)
            feed = {key: forms(x)[-1 - index % len(forms(x))] for key, x in inputs.items()}
            found = function.run(feed)
            if not all(torch.equal(found[key], value) for key, value in expected.items()):
                wrong.append([name, threads, index])
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {
        "int8": int8_exact(),
        "kernels": provenance()["compiled_kernels"],
        "sums": wrong_sums(),
        "models": wrong_models(sys.argv[1]) if len(sys.argv) > 1 else [],
    }
    sys.stdout.write(json.dumps(found) + "\n")
