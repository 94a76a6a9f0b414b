"""How far apart fake-quant and integer model may lie, in steps of the output (numerics.md 3)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qtune.dtype import QuantDType, qint8, qint16
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.ops.spec import OpSpec, Rule
from qtune.testing.fuzzing.line import output_steps
from qtune.testing.fuzzing.propagation import error_bounds

ROUNDED = 0.004
"""``code * scale`` is rounded to float32: 2**-24 of an int16 code is up to 0.002 steps, twice."""

BY_RULE = {
    (Rule.INPUT_SCALE, qint8): 0.0,
    (Rule.INPUT_SCALE, qint16): 0.0,
    (Rule.TABLE, qint8): 0.0,
    (Rule.TABLE, qint16): 1.0,
    (Rule.OWN_SCALE, qint8): 1.0,
    (Rule.OWN_SCALE, qint16): 1.0,
    (Rule.NO_SCALE, qint8): 0.0,
    (Rule.NO_SCALE, qint16): 0.0,
    (Rule.DECOMPOSED, qint8): 2.0,  # where SPECIAL has no sum of its parts
    (Rule.DECOMPOSED, qint16): 16.0,
}
SPECIAL = {
    "abs": {qint8: 1.0, qint16: 1.0},  # of qmin saturates to qmax
    "neg": {qint8: 1.0, qint16: 1.0},
    "relu6": {qint8: 0.5, qint16: 0.5},
    "interpolate": {qint8: 1.0, qint16: 1.0},
    # Positions in 256ths: half of one along each axis, on steps of 255 codes; then the rounding.
    "grid_sample": {qint8: 1.5, qint16: 1.5},
    "warp": {qint8: 1.5, qint16: 1.5},
    "add": {qint16: 2.0},
    "sub": {qint16: 2.0},
    "sum": {qint16: 2.0},
    "batch_norm": {qint16: 2.0},  # 15 bits of M on 16 bits of code: one step, and the rounding
    "cumsum": {qint16: 2.0},
    "clamp_scalar": {qint8: 0.5, qint16: 0.5},
    "lerp": {qint8: 2.0, qint16: 2.0 + 1.0 + 2.0},
    "addcmul": {qint8: 2.0, qint16: 1.0 + 2.0},
    "addcdiv": {qint8: 2.0, qint16: 5.0 + 1.0 + 2.0},
    "logsumexp": {qint8: 2.0, qint16: 2.0 + 1.0 + 2.0 + 5.0 + 2.0},
    "softmin": {qint8: 2.0, qint16: 1.0 + 1.0 + 2.0 + 5.0 + 1.0},
    "min": {qint8: 1.0, qint16: 1.0},
    "aminmax": {qint8: 0.0, qint16: 0.0},
    "broadcast_tensors": {qint8: 0.0, qint16: 0.0},
    # Sums of their parts' bars, which are int16 inside; a qint8 result is off by one more tie.
    "softmax": {qint8: 2.0, qint16: 1.0 + 2.0 + 5.0 + 1.0},
    "log_softmax": {qint8: 2.0, qint16: 2.0 + 1.0 + 2.0 + 5.0 + 2.0},
    "div": {qint8: 2.0, qint16: 5.0 + 1.0},
    "glu": {qint8: 1.0, qint16: 1.0 + 1.0},
    # mean, sub, square, mean, rsqrt, mul, weight, bias; the first two are not in an rms norm.
    "layer_norm": {qint8: 2.0, qint16: 1.0 + 2.0 + 1.0 + 1.0 + 5.0 + 1.0 + 1.0 + 2.0},
    "group_norm": {qint8: 2.0, qint16: 1.0 + 2.0 + 1.0 + 1.0 + 5.0 + 1.0 + 1.0 + 2.0},
    "instance_norm": {qint8: 2.0, qint16: 1.0 + 2.0 + 1.0 + 1.0 + 5.0 + 1.0 + 1.0 + 2.0},
    "rms_norm": {qint8: 2.0, qint16: 1.0 + 1.0 + 5.0 + 1.0 + 1.0},
    "vector_norm": {qint8: 2.0, qint16: 1.0 + 2.0 + 5.0},
    "normalize": {qint8: 2.0, qint16: 1.0 + 2.0 + 5.0 + 1.0},
    "var": {qint8: 2.0, qint16: 1.0 + 2.0 + 1.0 + 1.0 + 1.0},
    "std": {qint8: 2.0, qint16: 1.0 + 2.0 + 1.0 + 1.0 + 1.0 + 5.0},
    "pow": {qint8: 1.0, qint16: 5.0},
    # A product, perhaps scaled, and a sum.
    "addbmm": {qint8: 2.0, qint16: 1.0 + 1.0 + 2.0},
    "addmm": {qint8: 2.0, qint16: 1.0 + 1.0 + 2.0},
    "addmv": {qint8: 2.0, qint16: 1.0 + 1.0 + 2.0},
    "addr": {qint8: 2.0, qint16: 1.0 + 1.0 + 2.0},
    "baddbmm": {qint8: 2.0, qint16: 1.0 + 1.0 + 2.0},
    "einsum": {qint8: 1.0, qint16: 1.0 + 2.0},
    "inner": {qint8: 1.0, qint16: 1.0 + 2.0},
    "outer": {qint8: 1.0, qint16: 1.0},
    "tensordot": {qint8: 1.0, qint16: 1.0 + 2.0},
    "masked_softmax": {qint8: 2.0, qint16: 1.0 + 2.0 + 5.0 + 1.0},
    "scaled_dot_product_attention": {qint8: 2.0, qint16: 1.0 + 9.0 + 1.0 + 1.0},
    "multi_head_attention": {qint8: 3.0, qint16: 1.0 + 12.0 + 3.0},
    # square, mean, times alpha, plus k, its power, the product with the input.
    "local_response_norm": {qint8: 2.0, qint16: 1.0 + 1.0 + 1.0 + 2.0 + 5.0 + 1.0},
    # square, mean, times the count, root.
    "lp_pool": {qint8: 2.0, qint16: 1.0 + 1.0 + 1.0 + 5.0},
    # Averages of planes in int16, one step, then of the depth; the planes' step is no finer there.
    "avg_pool3d": {qint8: 2.0, qint16: 3.0},
    "adaptive_avg_pool3d": {qint8: 2.0, qint16: 4.0},
    "max": {qint8: 1.0, qint16: 1.0},
}
PROPAGATED = frozenset(
    {
        "bilinear", "clamp", "conv3d", "conv_transpose3d", "deform_conv2d", "gru", "gru_cell",
        "lstm", "lstm_cell", "multi_dot", "rnn", "rnn_cell",
    }
)  # fmt: skip
"""Those whose bar depends on their numbers: the errors of their parts are carried through them.

A step of the first part may be many of the next one's. Where a march takes int8 only, an int16
input on the border of two int8 codes may take either, and weights add up such terms, as they do the
samples of a deformable convolution, each rounded to int8. In a recurrent
layer each step multiplies the error of the state by the weights, a step of the gates is
many of the state's, and where rounded weights make sums leave the calibrated range, an int16 table
holds the border's value (numerics.md section 3).
"""

NARROWED = 1.0
"""More where the march takes int8 only: the codes are rounded to int8 once more, ties may part."""


STEEP = frozenset(
    {
        "acos", "acosh", "asin", "atanh", "log", "log10", "log1p", "log2", "logit", "power_of",
        "power_to", "reciprocal", "rsqrt", "sqrt", "tan",
    }
)  # fmt: skip
"""Five steps at int16: numerics.md section 3 says so of pow, log, tan and their kind."""

JUMPING = frozenset(
    {
        "ceil", "floor", "floor_divide", "fmod", "frac", "hardshrink", "remainder", "round", "sign",
        "threshold", "trunc", "trunc_divide",
    }
)  # fmt: skip
"""An int16 table goes from one side of a jump to the other on a ramp between two entries."""

JUMP = 65535.0
"""Most steps that two int16 codes lie apart: such a ramp may be off by the height of the jump."""


def table_bar(name: str) -> float:
    """Steps by which the int16 table of an operator may differ from its function."""
    return 5.0 if name in STEEP else JUMP if name in JUMPING else 1.0


def bar(
    entry: OpSpec, dtype: QuantDType, prepared: PreparedModel, inputs: Sequence[Tensor]
) -> float:
    """Most steps between the two results of ``entry``'s model on ``inputs``."""
    if entry.name in PROPAGATED:
        return _propagated(prepared, inputs)
    base = SPECIAL.get(entry.name, {}).get(dtype)
    if base is None and entry.rule is Rule.TABLE and dtype == qint16:
        base = table_bar(entry.name)
    if base is None:
        base = BY_RULE[entry.rule, dtype]
    is_narrowed = dtype == qint16 and any(
        kind.startswith("input") and stub.dtype == qint8 for _, kind, stub in iter_stubs(prepared)
    )
    return base + NARROWED if is_narrowed else base


def _propagated(prepared: PreparedModel, inputs: Sequence[Tensor]) -> float:
    pairs = zip(error_bounds(prepared, inputs), output_steps(prepared), strict=True)
    return max((bound / step for bound, step in pairs if step is not None), default=0.0)
