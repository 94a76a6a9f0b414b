"""What networks of timm and transformers do that once went wrong, as small models."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export

from .flow import calib, names, off, op, prep, run


class NormAct(nn.BatchNorm2d):
    """A batch norm with a forward, a check and modules of its own, as timm has."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()
        self.running_mean.uniform_(-1, 1)
        self.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ValueError(x.ndim)
        if self.training:
            self.num_batches_tracked.add_(1)
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training
        )
        return self.act(self.drop(y))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), NormAct(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


def test_a_norm_with_its_own_forward_is_folded_under_its_own_name() -> None:
    model = Block()
    p = prep(model, X)
    assert p.unfused == ()
    assert names(p)[1:-1] == ["conv", "norm", "norm.drop", "norm.act"]
    assert op(p, "norm").op == "identity"
    off(p)
    # 1e-5 relative: the folded batch norm (numerics.md section 5)
    torch.testing.assert_close(run(p, X), run(model, X), rtol=1e-5, atol=1e-6)


def test_a_group_goes_through_an_identity() -> None:
    p = prep(Block(), X)
    quantized = [name for name in names(p) if op(p, name).activation_post_process is not None]
    assert quantized == ["_input_0_quant", "norm.act"]
    calib(p, [X])
    qat = export(p, X)
    integer = compiler.convert(qat)
    assert integer.report == ()
    assert torch.equal(qat[0](X), run(p, X))
    assert torch.equal(integer[0](X), run(p, X))


def test_such_a_norm_trains_where_it_was_prepared_in_training_mode() -> None:
    p = prepare(Block().train(), X)
    set_fake_quantize(p.train(), FakeQuantState.QAT)
    p(X).sum().backward()
    assert p.get_parameter("conv.weight").grad is not None
    assert int(p.get_buffer("norm.num_batches_tracked")) == 1


class OwnLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


def test_parts_of_a_norm_with_its_own_forward_have_its_name() -> None:
    p = prep(nn.Sequential(nn.Conv2d(3, 8, 1), OwnLayerNorm(8)), X)
    assert "1.mean" in names(p)
    assert not [name for name in names(p) if "layer_norm" in name]


class Queries(nn.Module):
    """One norm for the learned queries and for the data, as detection heads have."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(5, 8) * 3)
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) + self.norm(self.queries)


def test_a_composed_operator_shared_by_data_and_constants_has_one_set_of_parts() -> None:
    model, x = Queries(), torch.randn(5, 8)
    p = prep(model, x)
    calib(p, [x])
    assert names(p).count("norm.mean") == 2
    assert run(p, x).isfinite().all()
    off(p)
    # 1e-5 relative: a decomposed module (numerics.md section 5)
    torch.testing.assert_close(run(p, x), run(model, x), rtol=1e-5, atol=1e-5)


class Depthwise(nn.Module):
    """Takes its groups from the shape of the data, and its weight through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight.unsqueeze(1), padding=1, groups=x.shape[1])


def test_groups_from_a_size_are_those_of_the_weight() -> None:
    model, x = Depthwise(), torch.randn(2, 6, 9)
    p = prep(model, x)
    calib(p, [x])
    assert "conv1d" in {item.op for _, item in p.operators()}
    off(p)
    for other in (x, torch.randn(1, 6, 12)):
        assert torch.equal(run(p, other), run(model, other))
    with pytest.raises(RuntimeError, match="groups"):
        run(p, torch.randn(2, 5, 9))


def defaulted(forward: Any) -> Any:
    """A decorator of forward that sees only *args and **kwargs, as transformers has."""

    @functools.wraps(forward)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("scale") is None:
            kwargs["scale"] = 2.0
        return forward(self, *args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.empty, self.linear = nn.Sequential(), nn.Linear(8, 4)

    @defaulted
    def forward(self, x: Tensor, scale: float | None = None, **options: Any) -> Tensor:
        return self.linear(self.empty(x)) * scale


def test_arguments_reach_a_decorated_forward_as_the_user_passes_them() -> None:
    model, x = Decorated(), torch.randn(3, 8)
    p = prep(model, x)
    off(p)
    assert torch.equal(run(p, x), run(model, x))


def test_an_empty_sequential_is_no_operator() -> None:
    p = prep(Decorated(), torch.randn(3, 8))
    assert p.float_ops == ()
    assert "empty" not in names(p)


def test_a_softmax_of_a_scalar_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="without dimensions is a constant"):
        prep(nn.Sequential(nn.Softmax(0)), torch.tensor(1.0))
