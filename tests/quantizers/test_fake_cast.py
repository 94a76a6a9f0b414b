import copy
import pickle

import pytest
import torch

from qtune.dtype import float16, qint16
from qtune.errors import ArgumentError
from qtune.quantizers import FakeCast
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

X = torch.tensor([0.1, -1.0, 2049.0, 2051.0, 65504.0, 65519.0, 65520.0, 1e-8, 6.1e-5, 0.0])


def test_values_are_those_of_float16_in_the_dtype_of_the_input():
    y = FakeCast(dtype=torch.float16)(X)
    assert y.dtype == torch.float32
    # ties to even: 2049 lies between 2048 and 2050, 2051 between 2050 and 2052
    assert y.tolist() == [
        0.0999755859375,
        -1.0,
        2048.0,
        2052.0,
        65504.0,
        65504.0,
        float("inf"),
        0.0,
        6.097555160522461e-05,
        0.0,
    ]
    assert FakeCast()(X.double()).dtype == torch.float64
    assert torch.equal(FakeCast()(y), y)


def test_nan_and_infinities_pass():
    y = FakeCast()(torch.tensor([float("nan"), float("inf"), -float("inf")]))
    assert y.isnan().tolist() == [True, False, False]
    assert y[1:].tolist() == [float("inf"), -float("inf")]


@pytest.mark.parametrize("spelling", [float16, torch.float16, "float16", "torch.float16"])
def test_every_spelling_is_float16(spelling):
    assert FakeCast(dtype=spelling).dtype is float16


@pytest.mark.parametrize("wrong", [torch.bfloat16, torch.float32, qint16, None])
def test_other_dtypes_are_refused(wrong):
    with pytest.raises(ArgumentError, match="must be float16"):
        FakeCast(dtype=wrong)
    with pytest.raises(ArgumentError, match="conv: expected a floating torch tensor"):
        FakeCast(name="conv")(torch.tensor([1]))
    with pytest.raises(ArgumentError, match=r"got torch.uint8; convert it before the call"):
        FakeCast()(torch.zeros(2, dtype=torch.uint8))


@pytest.mark.parametrize("state", list(FakeQuantState))
def test_state_decides_whether_it_casts(state):
    cast = FakeCast()
    set_fake_quantize(torch.nn.Sequential(cast), state)
    casts = state in (FakeQuantState.QAT, FakeQuantState.VALIDATION)
    assert torch.equal(cast(X), X.half().float() if casts else X)


def test_gradient_is_one_where_the_result_is_finite():
    x = X.clone().requires_grad_()
    y = FakeCast()(x)
    assert torch.equal(y.detach(), X.half().float())
    y.sum().backward()
    assert x.grad.tolist() == [1.0] * 6 + [0.0] + [1.0] * 3


def test_it_copies_pickles_and_prints():
    cast = FakeCast.with_args(dtype=torch.float16)(name="relu")
    for other in (copy.deepcopy(cast), pickle.loads(pickle.dumps(cast))):
        assert (other.name, other.dtype, other.state) == ("relu", float16, cast.state)
    assert repr(cast) == "FakeCast(dtype=torch.float16, state=qat)"
    assert cast.state_dict() == {}
