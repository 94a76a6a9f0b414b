"""Held codes: the form between fast kernels."""

import numpy as np
import pytest
import torch

from qtune.arith_fast.held import (
    channels_last,
    from_held,
    held_from_plain,
    plain_from_held,
    quant_dtype_of,
    to_held,
)
from qtune.dtype import qint8, qint16, qint32
from qtune.errors import ArgumentError


@pytest.mark.parametrize(
    ("dtype", "held_dtype"),
    [(qint8, torch.uint8), (qint16, torch.int16), (qint32, torch.int32)],
)
def test_held_codes_come_back(dtype, held_dtype):
    codes = np.array([[dtype.qmin, -1], [0, dtype.qmax]])
    held = to_held(codes, dtype)
    assert held.dtype == held_dtype
    assert quant_dtype_of(held) is dtype
    back = from_held(held)
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, codes)


def test_qint8_is_held_with_zero_point_128():
    assert to_held([-128, 0, 127], qint8).tolist() == [0, 128, 255]


def test_maps_are_held_in_channels_last():
    held = to_held(np.zeros((2, 3, 4, 5)), qint8)
    assert held.is_contiguous(memory_format=torch.channels_last)
    assert from_held(held).flags.c_contiguous


def test_codes_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match=r"0 \.\. 128 do not fit qint8 \(-128 \.\. 127\)"):
        to_held([0, 128], qint8)


def test_floats_are_not_held_codes():
    with pytest.raises(ArgumentError, match="float32"):
        from_held(torch.zeros(3))


def test_channels_last_leaves_other_ranks_contiguous():
    assert channels_last(torch.zeros(3, 4).t()).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4, 5), (0, 3)])
def test_plain_codes_survive_being_held(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    info = torch.iinfo(dtype)
    codes = torch.randint(info.min, info.max, shape, dtype=torch.int64).to(dtype)
    if codes.numel() > 1:
        codes.view(-1)[:2] = torch.tensor([info.min, info.max], dtype=dtype)
    held = held_from_plain(codes)
    assert np.array_equal(from_held(held).reshape(shape), codes.numpy())
    back = plain_from_held(held)
    assert torch.equal(back, codes)
    assert back.is_contiguous()
