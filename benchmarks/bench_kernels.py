"""Integer kernels against float32 ones of the same shapes, one thread: medians and ratios.

Run by hand: ``python benchmarks/bench_kernels.py [filter]``. A ratio above 1 means the integer
kernel, requantize included, is faster than torch's float32 kernel (its bias included, no batch
norm, no activation).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from qtune.arith_fast.capability import guard, provenance
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.arith_fast.gemm import conv2d_kernel, conv_transpose2d_kernel, linear_kernel
from qtune.arith_fast.held import to_held
from qtune.dtype import qint8, qint16

# name: batch, inputs, outputs, kernel, stride, groups, size
CONVS = {
    "resnet.stem": (8, 3, 64, 7, 2, 1, 224),
    "resnet.layer1": (8, 64, 64, 3, 1, 1, 56),
    "resnet.layer2": (8, 128, 128, 3, 1, 1, 28),
    "resnet.layer3": (8, 256, 256, 3, 1, 1, 14),
    "resnet.layer4": (8, 512, 512, 3, 1, 1, 7),
    "resnet.down": (8, 64, 128, 1, 2, 1, 56),
    "mobile.stem": (8, 3, 32, 3, 2, 1, 224),
    "mobile.expand1": (8, 16, 96, 1, 1, 1, 112),
    "mobile.depth1": (8, 96, 96, 3, 2, 96, 112),
    "mobile.project1": (8, 96, 24, 1, 1, 1, 56),
    "mobile.depth3": (8, 192, 192, 3, 1, 192, 28),
    "mobile.expand5": (8, 96, 576, 1, 1, 1, 14),
    "mobile.last": (8, 320, 1280, 1, 1, 1, 7),
}
LINEARS = {"linear.head": (8, 1280, 1000), "linear.mlp": (1576, 384, 1536)}


Row = tuple[str, float, float]


def median_us(call: Callable[[], object], repeats: int = 15) -> float:
    """Median processor time of a call in microseconds: other processes do not count."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e6


def conv_row(name: str, in_dtype: str = "int8", addend: bool = False) -> Row:
    """Times of one convolution: integer and float32."""
    batch, inputs, outputs, size, stride, groups, width = CONVS[name]
    rng = np.random.default_rng(0)
    w = rng.normal(0, 30, size=(outputs, inputs // groups, size, size)).clip(-127, 127)
    m, n = rng.integers(1 << 14, 1 << 15, outputs), rng.integers(23, 26, outputs)
    pad = size // 2
    source = qint8 if in_dtype == "int8" else qint16
    codes = rng.integers(0, source.qmax, size=(batch, inputs, width, width))
    extra = (m, n - 8, qint8) if addend else None
    kernel = conv2d_kernel(
        w.round(), rng.integers(-(10**5), 10**5, outputs), m, n, (stride, stride), (pad,) * 4,
        groups=groups, in_dtype=in_dtype, lo=0, code_range=(0, source.qmax), addend=extra,
    )  # fmt: skip
    held = to_held(codes, source)
    side = (width + 2 * pad - size) // stride + 1
    operand = to_held(rng.integers(-128, 128, (batch, outputs, side, side)), qint8)
    operands = [operand] if addend else []
    x, wf, bf = torch.randn(codes.shape), torch.randn(w.shape), torch.randn(outputs)
    integer = median_us(lambda: kernel(held, *operands))
    floating = median_us(lambda: F.conv2d(x, wf, bf, stride, pad, 1, groups))
    return f"{name} {in_dtype}{' + add' if addend else ''}", integer, floating


def transposed_row(name: str, size: int, inputs: int, outputs: int, width: int) -> Row:
    """Times of one transposed convolution of stride 2."""
    rng, pad = np.random.default_rng(0), (size - 2) // 2
    w = rng.integers(-60, 60, size=(inputs, outputs, size, size))
    kernel = conv_transpose2d_kernel(w, 0, 20000, 26, (2, 2), (pad,) * 4)
    codes = rng.integers(-128, 128, size=(8, inputs, width, width))
    held, x, wf = to_held(codes, qint8), torch.randn(codes.shape), torch.randn(w.shape)
    integer = median_us(lambda: kernel(held))
    return name, integer, median_us(lambda: F.conv_transpose2d(x, wf, None, 2, pad))


def linear_row(name: str) -> Row:
    """Times of one linear layer: integer and float32."""
    rows, inputs, outputs = LINEARS[name]
    rng = np.random.default_rng(0)
    kernel = linear_kernel(rng.integers(-60, 60, (outputs, inputs)), 0, 20000, 26)
    held = to_held(rng.integers(-128, 128, (rows, inputs)), qint8)
    x, w, b = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    return name, median_us(lambda: kernel(held)), median_us(lambda: F.linear(x, w, b))


def fake_quantize_row(shape: tuple[int, ...], axis: int | None) -> Row:
    """Fake-quantize against relu, the cheapest pass over the same tensor."""
    x = torch.randn(shape)
    scale = torch.full((shape[axis] if axis is not None else 1,), 0.02)
    name = f"fake_quantize {shape} {'per tensor' if axis is None else f'axis {axis}'}"
    found = median_us(lambda: fake_quantize(x, scale, -128, 127, axis or 0))
    return name, found, median_us(lambda: torch.relu(x))


def main() -> None:
    """Print one line per case."""
    torch.set_num_threads(1)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    cases: list[tuple[str, Callable[[], Row]]] = []
    cases += [(name, lambda name=name: conv_row(name)) for name in CONVS]
    cases += [
        ("resnet.layer1 add", lambda: conv_row("resnet.layer1", addend=True)),
        ("resnet.layer3 add", lambda: conv_row("resnet.layer3", addend=True)),
        ("resnet.layer2 int16", lambda: conv_row("resnet.layer2", "int16")),
        ("mobile.depth3 int16", lambda: conv_row("mobile.depth3", "int16")),
    ]
    cases += [
        ("up.k2", lambda: transposed_row("up.k2", 2, 256, 128, 28)),
        ("up.k4", lambda: transposed_row("up.k4", 4, 128, 128, 28)),
    ]
    cases += [(name, lambda name=name: linear_row(name)) for name in LINEARS]
    cases += [
        ("fake", lambda: fake_quantize_row((8, 64, 56, 56), None)),
        ("fake", lambda: fake_quantize_row((512, 512, 3, 3), 0)),
    ]
    print(provenance())
    print(f"{'case':40}{'integer us':>12}{'float32 us':>12}{'ratio':>8}")
    with guard():
        for name, case in cases:
            if wanted in name:
                label, integer, floating = case()
                print(f"{label:40}{integer:12.0f}{floating:12.0f}{floating / integer:8.2f}")


if __name__ == "__main__":
    main()
