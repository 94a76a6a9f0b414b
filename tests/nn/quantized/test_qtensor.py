"""``QTensor``: what it tells, what runs on it, and what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from qtune import qint4, qint8, qint16
from qtune.arith.quantize import quantize
from qtune.errors import ArgumentError
from qtune.nn.quantized import QTensor

CODES = torch.arange(-12, 12, dtype=torch.int8).reshape(2, 3, 4)


def q(codes: Tensor = CODES, scale: float = 0.5) -> QTensor:
    return QTensor(codes, scale, qint8)


def test_it_tells_codes_scale_dtype_shape_and_real_numbers() -> None:
    x = q()
    assert isinstance(x, Tensor)
    assert x.dtype is qint8
    assert x.is_quantized
    assert x.shape == (2, 3, 4)
    assert x.size(1) == 3
    assert x.dim() == x.ndim == 3
    assert len(x) == 2
    assert x.device == torch.device("cpu")
    assert x.numel() == 24
    assert torch.equal(x.int_repr(), CODES)
    assert x.q_scale() == 0.5
    assert x.q_zero_point() == 0
    assert torch.equal(x.dequantize(), CODES.float() / 2)
    assert torch.equal(torch.dequantize(x), CODES.float() / 2)
    assert x.qscheme() == torch.per_tensor_symmetric
    assert not torch.is_floating_point(x)
    assert "dtype=qint8, scale=0.5" in repr(x)


def test_a_tensor_without_dimensions_keeps_having_none() -> None:
    x = q(torch.tensor(3, dtype=torch.int8))
    assert x.shape == ()
    assert torch.equal(x.dequantize(), torch.tensor(1.5))


def test_scales_along_a_channel_axis() -> None:
    scales = torch.tensor([0.5, 1.0, 2.0])
    x = QTensor(CODES, scales, qint8, ch_axis=1)
    assert torch.equal(x.dequantize(), CODES.float() * scales[:, None])
    assert torch.equal(x.q_per_channel_scales(), scales)
    assert x.q_per_channel_axis() == 1
    assert x.qscheme() == torch.per_channel_symmetric
    with pytest.raises(ArgumentError, match=r"3 scales along axis 1; use q_per_channel_scales"):
        x.q_scale()
    with pytest.raises(ArgumentError, match=r"expected 3 scale\(s\) for ch_axis=1, got 2"):
        QTensor(CODES, scales[:2], qint8, ch_axis=1)


@pytest.mark.parametrize("dtype", [qint4, qint8, qint16], ids=str)
def test_quantize_is_the_rule_of_arith(dtype: object) -> None:
    x = torch.randn(5, 7) * 4
    expected = quantize(x.numpy(), np.float32([0.03]), dtype)  # type: ignore[arg-type]
    assert np.array_equal(QTensor.quantize(x, 0.03, dtype).int_repr().numpy(), expected)


def test_movement_keeps_the_grid_and_moves_the_codes() -> None:
    x = q()
    for moved, codes in (
        (x.view(2, -1), CODES.view(2, -1)),
        (x.permute(0, 2, 1), CODES.permute(0, 2, 1)),
        (x[:, 1:, ::2], CODES[:, 1:, ::2]),
        (torch.flatten(x, 1), CODES.flatten(1)),
        (torch.cat([x, x[:1]]), torch.cat([CODES, CODES[:1]])),
        (x.unsqueeze(0), CODES.unsqueeze(0)),
        (torch.relu(x), CODES.clamp(min=0)),
        (x.chunk(2, 2)[1], CODES[..., 2:]),
        (list(x)[1], CODES[1]),
    ):
        assert isinstance(moved, QTensor)
        assert moved.q_scale() == 0.5
        assert moved.dtype is qint8
        assert torch.equal(moved.int_repr(), codes)


def test_results_without_a_scale_are_plain_tensors() -> None:
    x = q()
    assert torch.equal(x.argmax(1), CODES.int().argmax(1))
    greater = x > 1.0
    assert type(greater) is Tensor
    assert torch.equal(greater, CODES > 2)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("add", lambda x: x + x),
        ("sigmoid", torch.sigmoid),
        ("mean", lambda x: x.mean()),
        ("fft_fft", torch.fft.fft),
        ("numpy", lambda x: x.numpy()),
        ("half", lambda x: x.half()),
        ("cat", lambda x: torch.cat([x, q(scale=0.25)])),
    ],
)
def test_what_needs_a_scale_is_refused_with_what_to_do(name: str, call: object) -> None:
    with pytest.raises(ArgumentError, match=rf"^{name} on a QTensor: .*FloatFunctional"):
        call(q())  # type: ignore[operator]


def test_it_moves_and_copies_without_changing_its_dtype() -> None:
    x = q()
    for same in (x.cpu(), x.to("cpu"), x.clone(), x.detach(), copy.deepcopy(x)):
        assert torch.equal(same.int_repr(), CODES)
        assert same.q_scale() == 0.5
    loaded = pickle.loads(pickle.dumps(x))
    assert torch.equal(loaded.int_repr(), CODES)
    assert loaded.dtype is qint8
    with pytest.raises(
        ArgumentError, match=r"the dtype of codes can't be changed to torch.float16"
    ):
        x.to(torch.float16)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_positive_numbers(bad: float) -> None:
    with pytest.raises(ArgumentError, match=r"scales must be positive numbers"):
        QTensor(CODES, bad, qint8)


def test_codes_have_the_dtype_that_stores_them() -> None:
    with pytest.raises(ArgumentError, match=r"codes of qint16 are a torch.int16 tensor, got"):
        QTensor(CODES, 0.5, qint16)
