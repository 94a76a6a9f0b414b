"""Plain int64 forms of the integer GEMMs, written for these tests only."""

from __future__ import annotations

import numpy as np

from qtune.arith.requantize import accumulate_addend, rescale, saturate_accumulator


def conv_sum(x, w, stride, padding, dilation, groups):
    """int64 sums of a convolution; padding (top, left, bottom, right)."""
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, depth, height, width = w.shape
    tall = (x.shape[2] - dilation[0] * (height - 1) - 1) // stride[0] + 1
    wide = (x.shape[3] - dilation[1] * (width - 1) - 1) // stride[1] + 1
    total = np.zeros((x.shape[0], outputs, tall, wide), dtype=np.int64)
    per_group = outputs // groups
    for group in range(groups):
        inputs = x[:, group * depth : (group + 1) * depth]
        kernel = w[group * per_group : (group + 1) * per_group]
        for row in range(height):
            for column in range(width):
                y, z = row * dilation[0], column * dilation[1]
                piece = inputs[
                    :,
                    :,
                    y : y + (tall - 1) * stride[0] + 1 : stride[0],
                    z : z + (wide - 1) * stride[1] + 1 : stride[1],
                ]
                part = np.tensordot(kernel[:, :, row, column], piece, axes=(1, 1)).swapaxes(0, 1)
                total[:, group * per_group : (group + 1) * per_group] += part
    return total


def conv_transpose_sum(x, w, stride, padding, output_padding, dilation, groups):
    """int64 sums of a transposed convolution by scattering; w [I, O/g, kh, kw]."""
    batch, inputs, height, width = x.shape
    _, per_group, tall, wide = w.shape
    full_h = (height - 1) * stride[0] + dilation[0] * (tall - 1) + 1 + output_padding[0]
    full_w = (width - 1) * stride[1] + dilation[1] * (wide - 1) + 1 + output_padding[1]
    total = np.zeros((batch, per_group * groups, full_h, full_w), dtype=np.int64)
    depth = inputs // groups
    for group in range(groups):
        source = x[:, group * depth : (group + 1) * depth]
        kernel = w[group * depth : (group + 1) * depth]
        target = total[:, group * per_group : (group + 1) * per_group]
        for row in range(tall):
            for column in range(wide):
                y, z = row * dilation[0], column * dilation[1]
                part = np.tensordot(kernel[:, :, row, column], source, axes=(0, 1)).swapaxes(0, 1)
                target[
                    :,
                    :,
                    y : y + (height - 1) * stride[0] + 1 : stride[0],
                    z : z + (width - 1) * stride[1] + 1 : stride[1],
                ] += part
    top, left, bottom, right = padding
    return total[:, :, top : full_h - bottom, left : full_w - right]


def finish(acc, bias, m, n, lo, hi, addend=None, wide=False, axis=1):
    """Bias, saturation, fused operand, requantize; ``addend`` is (codes, m_a, n_a)."""
    shape = [1] * acc.ndim
    shape[axis] = -1
    bias, m, n = (np.asarray(v, dtype=np.int64).reshape(shape) for v in (bias, m, n))
    acc = acc + bias
    if not wide:
        acc = saturate_accumulator(acc)
    if addend is not None:
        codes, m_a, n_a = addend
        m_a, n_a = (np.asarray(v, dtype=np.int64).reshape(shape) for v in (m_a, n_a))
        acc = accumulate_addend(acc, codes, m_a, n_a, wide)
    return np.clip(rescale(acc, m, n), lo, hi)
