"""The QAT modes that keep batch norms, on whole models: levels, eager mode, branches, states."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import Inputs
from qtune.errors import PrepareError
from qtune.modes import FuseMode, QATMode, consistency_level, qat_mode
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    QuantStub,
    absorb_bn,
    fuse_known_modules,
    fuse_modules,
    get_default_qat_qconfig,
    load_observer_params,
    prepare,
    prepare_qat,
    set_fake_quantize,
)
from qtune.quantization import convert as convert_modules
from qtune.quantization.hbdk4 import convert, export, pre_export
from tests.quantization.flow import calib, off, op, run, scales

from .kept_norms import (
    BOTH,
    REVERSE,
    WITH,
    Residual,
    mode,
    random_norm,
    same_stats,
    trained,
)

__all__ = ["mode"]


def test_a_state_of_another_mode_is_refused() -> None:
    x = torch.randn(4, 3, 8, 8)
    models = {}
    for each in BOTH:
        with qat_mode(each):
            models[each] = prepare(Residual(), x)
            calib(models[each], [x])
    with pytest.raises(RuntimeError, match=r"mode with_bn, .* prepared in with_bn_reverse_fold"):
        models[REVERSE].load_state_dict(models[WITH].state_dict())
    with pytest.raises(PrepareError, match=r"with_bn.*with_bn_reverse_fold"):
        load_observer_params(models[WITH], models[REVERSE])
    fused = prepare(Residual(), x)
    with pytest.raises(RuntimeError, match=r"neck\.1\.running_mean"):
        fused.load_state_dict(absorb_bn(models[WITH], "backbone").state_dict())
    fused.load_state_dict(absorb_bn(models[WITH]).state_dict())  # all absorbed: the same form


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_consistency_levels_hold_for_the_absorbed_model(mode: QATMode, level: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6), nn.ReLU(), nn.Conv2d(6, 2, 1))
    x = torch.randn(4, 3, 8, 8)
    with consistency_level(level):
        if mode is WITH and level >= 2:
            with pytest.raises(PrepareError, match=r"0: consistency level .* 1 .*ReverseFold"):
                prepare(model, x)
            return
        p = trained(prepare(model, x), x)
    y = run(p, x)
    bc = export(p, x)
    assert torch.equal(bc[0](x), y)
    if level >= 2:
        scale = scales(p)["0", "weight"]
        assert torch.equal(torch.frexp(scale).mantissa, torch.full_like(scale, 0.5))
    step = float(scales(p)["2", "output"])
    assert (convert(bc)[0](x) - y).abs().max() <= step


def test_sync_batch_norm_is_kept_and_absorbed_like_any_other(mode: QATMode) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6, cls=nn.SyncBatchNorm), nn.ReLU())
    x = torch.randn(4, 3, 8, 8)
    p = prepare(model.train(), x)
    set_fake_quantize(p, FakeQuantState._FLOAT)
    assert torch.equal(p(x), model(x))
    assert same_stats(p, model)
    trained(p, x)
    assert torch.equal(export(p, x)[0](x), run(p, x))


class Functional(nn.Module):
    """A norm that is no module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("var", torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.conv(x), self.mean, self.var)


def test_a_functional_norm_has_a_scale_of_its_own_in_these_modes(mode: QATMode) -> None:
    model, x = Functional().eval(), torch.randn(4, 3, 8, 8)
    p = prepare(model, x)
    assert f"is a function; the QAT mode {mode.value} keeps modules" in p.unfused[0].reason
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    with qat_mode(QATMode.FuseBN):
        assert prepare(model, x).unfused == ()


def test_reused_layers_are_not_tied(mode: QATMode) -> None:
    """A09"""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 1), random_norm(4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.bn(self.conv(x)), self.conv(x * 2)

    model, x = Twice(), torch.randn(4, 3, 5, 5)
    p = prepare(model, x)
    assert "not fused: reused" in p.unfused[0].reason
    assert op(p, "conv").kept is None
    set_fake_quantize(p.train(), FakeQuantState._FLOAT)
    for got, expected in zip(p(x), model.train()(x), strict=True):
        assert torch.equal(got, expected)


class Stubbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 6, 3), random_norm(6), nn.ReLU()
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.head(self.relu(self.bn(self.conv(self.quant(x))))))


def test_eager_mode_keeps_and_absorbs_norms(mode: QATMode) -> None:
    model, x = Stubbed().eval(), torch.randn(4, 3, 8, 8)
    model.qconfig = get_default_qat_qconfig()
    fuse_modules(model, ["conv", "bn", "relu"], inplace=True, fuser_func=fuse_known_modules)
    p: Any = prepare_qat(model)
    assert p.conv.kept is p.bn.kept is not None
    calib(p, [x])
    trained(p, x)
    y = run(p, x)
    assert torch.equal(export(p, x)[0](x), y)
    step = float(p.relu.activation_post_process.scale)
    integer = convert_modules(copy.deepcopy(p))
    assert (run(integer, x) - y).abs().max() <= 2 * step  # through the weights of the head
    absorb_bn(p)
    assert p.bn.op == "identity"
    assert torch.equal(export(p, x)[0](x), run(p, x))
    assert mode is WITH or torch.equal(run(p, x), y)


class Branches(nn.Module):
    """Two tasks over one backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Conv2d(6, 2, 1) for name in ("a", "b")})

    def forward(self, x: Tensor, task: str) -> Tensor:
        x = self.stem(x)
        return self.heads[task](x)  # type: ignore[no-any-return]


def test_branches_share_a_kept_norm(mode: QATMode) -> None:
    x = torch.randn(4, 3, 8, 8)
    p = prepare(Branches(), [Inputs(x, "a"), Inputs(x, "b")])
    assert op(p, "stem.1").kept is op(p, "stem.0").kept is not None
    calib(p, [Inputs(x, "a"), Inputs(x, "b")])
    p.train()
    set_fake_quantize(p, FakeQuantState.QAT)
    sum(p(x, task).square().mean() for task in "ab").backward()  # type: ignore[union-attr]
    set_fake_quantize(p.eval(), FakeQuantState.VALIDATION)
    before = [run(p, Inputs(x, task)) for task in "ab"]
    absorbed = pre_export(p)
    after = [run(absorbed, Inputs(x, task)) for task in "ab"]
    assert all(map(torch.equal, before, after))
    assert op(absorbed, "stem.1").op == "identity"


def test_no_fuse_gives_every_operator_a_scale() -> None:
    x = torch.randn(4, 3, 8, 8)
    p = prepare(Residual().eval(), x, fuse_mode=FuseMode.NoFuse)
    quantized = {name for name, kind in scales(p) if kind == "output"}
    assert {"backbone.0", "backbone.1", "neck.0", "neck.1"} <= quantized
    off(p)
    torch.manual_seed(0)
    assert op(p, "neck.1").op == "batch_norm"
    calib(p, [x])
    assert torch.equal(export(p, x)[0](x), run(p, x))
