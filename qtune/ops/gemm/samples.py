"""Random small GEMM calls for fuzzing."""

from __future__ import annotations

from typing import Any

from qtune.ops.spec import Sample


def pick(rng: Any, *choices: Any) -> Any:
    """One of ``choices``."""
    return choices[int(rng.integers(len(choices)))]


def sample_conv(rng: Any, rank: int) -> Sample:
    """A convolution with random groups, stride, dilation, padding and bias."""
    groups = pick(rng, 1, 1, 2, 4)
    inputs = groups * pick(rng, 1, 2, 3)
    outputs = groups * pick(rng, 1, 2, 3)
    kernel = tuple(pick(rng, 1, 2, 3) for _ in range(rank))
    stride = tuple(pick(rng, 1, 2, 3) for _ in range(rank))
    if rank == 3:  # the marches take one stride of 1 or 2 for volumes
        stride = (min(stride[0], 2),) * rank
    dilation = (1,) * rank if max(stride) > 1 else tuple(pick(rng, 1, 2) for _ in range(rank))
    padding: Any = tuple(pick(rng, 0, 1) for _ in range(rank))
    if max(stride) == 1:
        padding = pick(rng, padding, "same", "valid")
    size = tuple(int(rng.integers(5, 9)) for _ in range(rank))
    shapes = (
        (pick(rng, 1, 2), inputs, *size),
        (outputs, inputs // groups, *kernel),
        pick(rng, None, (outputs,)),
    )
    attrs = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "padding_mode": "zeros",
    }
    return Sample(shapes, attrs)


def sample_conv_transpose(rng: Any, rank: int = 2) -> Sample:
    """A transposed convolution with random groups, stride, padding and output padding."""
    groups = pick(rng, 1, 1, 2, 3)
    inputs, outputs = groups * pick(rng, 1, 2), pick(rng, 1, 2, 3)
    kernel = (pick(rng, 2, 3, 4), pick(rng, 2, 3), pick(rng, 2, 3))[:rank]
    stride = tuple(int(rng.integers(1, k)) for k in kernel)
    extra = tuple(int(rng.integers(0, s)) for s in stride)
    shapes = (
        (pick(rng, 1, 2), inputs, *(int(size) for size in rng.integers(2, 6, rank))),
        (inputs, outputs, *kernel),
        pick(rng, None, (outputs * groups,)),
    )
    attrs = {
        "stride": stride,
        "padding": tuple(pick(rng, 0, 1) for _ in range(rank)),
        "output_padding": extra,
        "groups": groups,
        "dilation": (1,) * rank,
        "output_size": None,
    }
    return Sample(shapes, attrs)


def sample_deform_conv(rng: Any) -> Sample:
    """A deformable convolution with random groups, offset groups, padding, bias and modulation."""
    groups, parts = pick(rng, 1, 1, 2), pick(rng, 1, 2)
    inputs, outputs = 2 * pick(rng, 1, 2), groups * pick(rng, 1, 2)
    kernel, padding = (pick(rng, 1, 2, 3), pick(rng, 1, 2, 3)), (pick(rng, 0, 1), pick(rng, 0, 1))
    batch, *size = pick(rng, 1, 2), int(rng.integers(3, 7)), int(rng.integers(3, 7))
    out = tuple(n + 2 * p - k + 1 for n, p, k in zip(size, padding, kernel, strict=True))
    taps = parts * kernel[0] * kernel[1]
    shapes = (
        (batch, inputs, *size),
        (batch, 2 * taps, *out),
        (outputs, inputs // groups, *kernel),
        pick(rng, None, (outputs,)),
        pick(rng, None, (batch, taps, *out)),
    )
    attrs = {"stride": (1, 1), "padding": padding, "dilation": (1, 1), "groups": groups}
    return Sample(shapes, attrs)


def sample_linear(rng: Any) -> Sample:
    """A linear layer on inputs of one to four dimensions."""
    inputs, outputs = int(rng.integers(1, 20)), int(rng.integers(1, 12))
    lead = pick(rng, (2,), (3,), (2, 3), (1, 2, 3))
    return Sample(((*lead, inputs), (outputs, inputs), pick(rng, None, (outputs,))), {})


def sample_matmul(rng: Any) -> Sample:
    """A matrix product with batch axes that may broadcast."""
    rows, inner, columns = (int(rng.integers(1, 9)) for _ in range(3))
    lead_a, lead_b = pick(rng, ((), ()), ((2,), (2,)), ((2, 3), (1, 3)), ((2, 3), ()))
    return Sample(((*lead_a, rows, inner), (*lead_b, inner, columns)), {})
