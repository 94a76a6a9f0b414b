"""Models that read ``self.training``: prepared in eval mode, calibrated, trained, exported."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import Inputs
from qtune.check.qat_model import check_qat_model
from qtune.errors import GuardError
from qtune.modes import QATMode, get_qat_mode, set_qat_mode
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    convert_fx,
    hbdk4,
    prepare,
    set_fake_quantize,
)


def image(seed: int = 1) -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


class Attend(nn.Module):
    """``dropout_p`` by mode, in Python"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(3, 12, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).flatten(2).transpose(1, 2).chunk(3, 2)
        p = 0.25 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.out(y.transpose(1, 2).reshape(-1, 4, 8, 8))


class DropPath(nn.Module):
    """stochastic depth in front of a residual add that is fused"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def drop(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(0.5)
        mask.div_(0.5)
        return x * mask

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return F.relu(self.drop(self.norm(self.conv(x))) + x) * 0.5


class NormAct(nn.BatchNorm2d):
    """a norm that reads its mode itself, and counts batches"""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        is_batch = True if self.training else self.running_mean is None
        mean, var = self.running_mean, self.running_var
        y = F.batch_norm(x, mean, var, self.weight, self.bias, is_batch, self.momentum, self.eps)
        return F.relu(y)


class WithNormAct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3), NormAct(4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)))


class Decoded(nn.Module):
    """eval mode has operators that training mode lacks, and another structure of the result"""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Any:
        y = self.head(F.relu(self.conv(x)))
        if self.training:
            return [y]
        return torch.softmax(y.mean((2, 3)), 1), [y]


class Noise(nn.Module):
    """noise on the input, and a plain dropout whose flag needs no guard"""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 4, 3), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + torch.randn_like(x) * 0.1
        return self.drop(F.relu(self.conv(x)))


MODELS = [Attend, DropPath, WithNormAct, Decoded, Noise]


def made(cls: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = cls().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [tensor for item in result for tensor in tensors(item)]


@pytest.fixture
def with_bn() -> Any:
    before = get_qat_mode()
    set_qat_mode(QATMode.WithBN)
    yield
    set_qat_mode(before)


@pytest.mark.parametrize("cls", MODELS)
@pytest.mark.usefixtures("with_bn")
def test_float_state_is_the_float_model_in_both_modes(cls: type[nn.Module]) -> None:
    float_model = made(cls)
    prepared = prepare(float_model, image())
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    for training in (True, False):
        float_model.train(training)
        prepared.train(training)
        torch.manual_seed(3)
        expected = tensors(float_model(image(2)))
        torch.manual_seed(3)
        actual = tensors(prepared(image(2)))
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            # attention and softmax run as their parts, which round in another order: 2e-6 of 1
            tolerance = 2e-6 if cls in (Attend, Decoded) else 0.0
            assert float((ours - theirs).detach().abs().max()) <= tolerance
    norms = {k: v for k, v in float_model.state_dict().items() if "num_batches" in k}
    assert all(torch.equal(prepared.state_dict()[name], value) for name, value in norms.items())


@pytest.mark.parametrize("cls", MODELS)
def test_calibrated_trained_and_exported(cls: type[nn.Module]) -> None:
    prepared = prepare(made(cls), image()).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(image())
    assert all(bool(quantizer.observed) for _, _, quantizer in iter_stubs(prepared))
    prepared.train()
    set_fake_quantize(prepared, FakeQuantState.QAT)
    for _ in range(2):
        sum(y.square().mean() for y in tensors(prepared(image(3)))).backward()
    weights = {name: p.grad for name, p in prepared.named_parameters() if p.requires_grad}
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in weights.values())
    prepared.eval()
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    tables = hbdk4.pre_export(prepared)
    expected = tensors(tables(image()))
    module = hbdk4.export(tables, image())
    actual = tensors(module[0](image()))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    hbdk4.convert(module)


def fingerprint(prepared: PreparedModel) -> Any:
    names = [op.name for _, op in prepared.operators()]
    groups = [node.meta.get("group") for node, _ in prepared.operators()]
    stubs = [(name, kind, str(quantizer.dtype)) for name, kind, quantizer in iter_stubs(prepared)]
    state = {name for name in prepared.state_dict() if "num_batches" not in name}
    return names, groups, stubs, prepared.float_ops, prepared.unfused, state


@pytest.mark.parametrize("cls", MODELS)
@pytest.mark.parametrize("mode", [QATMode.FuseBN, QATMode.WithBN])
@pytest.mark.usefixtures("with_bn")
def test_the_eval_branch_is_what_it_is_alone(cls: type[nn.Module], mode: QATMode) -> None:
    set_qat_mode(mode)
    alone = prepare(made(cls), [Inputs(image()).in_mode(training=False)])
    both = prepare(made(cls), image())
    assert alone.graph_branches == ()
    assert [branch.aside for branch in both.graph_branches] == [False, True]
    assert fingerprint(both) == fingerprint(alone)
    results = []
    for prepared in (alone, both):
        set_fake_quantize(prepared.eval(), FakeQuantState.CALIBRATION)
        prepared(image())
        set_fake_quantize(prepared, FakeQuantState.VALIDATION)
        results.append(tensors(prepared(image(5))))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_recording_the_other_mode_leaves_nothing_behind() -> None:
    model = made(WithNormAct)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(4)
    state = torch.get_rng_state()
    prepared = prepare(model, image())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert not prepared.training
    assert not any(bool(quantizer.observed) for _, _, quantizer in iter_stubs(prepared))


def test_models_that_do_not_read_their_mode_have_one_branch() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)).eval()
    assert prepare(model, image()).graph_branches == ()


def test_a_model_in_training_mode_is_fused_as_in_eval_mode() -> None:
    in_training = prepare(made(DropPath).train(), image())
    in_eval = prepare(made(DropPath), image())
    assert in_training.training
    groups = [
        [(op.name, node.meta.get("group")) for node, op in prepared.operators()]
        for prepared in (in_training, in_eval)
    ]
    assert groups[0] == groups[1]
    assert in_training(image()).shape == in_training.eval()(image()).shape


def test_several_examples_have_their_own_training_branch() -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.path = DropPath()
            self.heads = nn.ModuleDict({"a": nn.Conv2d(4, 2, 1), "b": nn.Conv2d(4, 3, 1)})

        def forward(self, x: Tensor, task: str = "a") -> Tensor:
            return self.heads[task](self.path(x))

    examples = [Inputs(image()), Inputs(image(), task="b")]
    prepared = prepare(made(Task), examples)
    assert [branch.aside for branch in prepared.graph_branches] == [False, False, True, True]
    report = check_qat_model(prepared, examples)
    assert set(report.call_counts.values()) == {1}
    for training in (True, False):
        prepared.train(training)
        assert prepared(image(), task="b").shape[1] == 3
        assert prepared(image()).shape[1] == 2


def test_the_interface_is_that_of_the_example() -> None:
    prepared = prepare(made(DropPath), image())
    assert hbdk4.get_hbir_input_flattener(prepared)(image())[0].shape == (4, 3, 8, 8)


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor, scale: float = 2.0) -> Any:
        y = self.conv(x)
        return {"loss": (y * scale).square().mean()} if self.training else y


class WithAux(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.aux = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y + self.aux(y) if self.training else y


class Torn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.training:
            y = y * torch.rand(1)
        return self.norm(y)


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        y = self.conv(x)
        return F.l1_loss(y, target.float()) if self.training else y


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (WithLoss, "training mode computes another result than eval mode"),
        (WithAux, "training mode uses `aux.weight`"),
        (Torn, "something comes between a layer and its norm"),
        (Fails, "in training mode, .*no attribute 'float'"),
    ],
)
def test_training_with_more_than_the_eval_branch_needs_an_example(
    cls: type[nn.Module], reason: str
) -> None:
    prepared = prepare(made(cls), image())
    assert prepared.graph_branches == ()
    with pytest.raises(GuardError, match=reason) as caught:
        prepared.train()(image())
    assert "for t in (False, True)]" in str(caught.value)
    assert "qtune.Inputs(x).in_mode(training=t)" in str(caught.value)


def test_the_remedy_of_the_message_works() -> None:
    x = image()
    once = prepare(made(WithLoss), Inputs(x, scale=3.0)).train()
    with pytest.raises(GuardError) as caught:
        once(x, scale=3.0)
    remedy = "[qtune.Inputs(x, 3.0).in_mode(training=t) for t in (False, True)]"
    assert f"example_inputs={remedy}" in str(caught.value)
    examples = [Inputs(x, 3.0).in_mode(training=t) for t in (False, True)]
    assert prepare(made(WithLoss), examples).train()(x, scale=3.0)["loss"].shape == ()


def test_quantized_modules_have_no_training_branch() -> None:
    results = []
    for example in ([Inputs(image()).in_mode(training=False)], image()):
        prepared = prepare(made(DropPath), example).eval()
        set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
        prepared(image())
        set_fake_quantize(prepared, FakeQuantState.VALIDATION)
        quantized = convert_fx(prepared)
        assert quantized.graph_branches == ()
        results.append(quantized(image(5)))
    assert torch.equal(*results)
    assert prepared.train()(image()).shape == (4, 4, 8, 8)  # is left as it was


def test_copies_and_files_keep_both_branches() -> None:
    prepared = prepare(made(DropPath), image())
    buffer = io.BytesIO()
    torch.save(prepared, buffer)
    buffer.seek(0)
    for again in (copy.deepcopy(prepared), torch.load(buffer, weights_only=False)):
        results = []
        for model in (prepared, again):
            set_fake_quantize(model.train(), FakeQuantState._FLOAT)
            torch.manual_seed(3)
            results.append(model(image()))
        assert torch.equal(*results)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return self.conv(x)


def test_a_change_of_an_input_is_computed_but_not_made_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = made(InPlace)
    prepared = prepare(model, image())
    assert "forward changes its input x in place" in prepared.report.notes[0]
    assert "leaves the caller's tensor as it is" in caplog.text
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    ours, theirs = image(2), image(2)
    assert torch.equal(prepared(ours), model(theirs))
    assert torch.equal(ours, image(2))
    assert torch.equal(theirs, image(2) + 1)


class Causal(nn.Module):
    """a mask that the decomposition makes for the example's length"""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        p = 0.25 if self.training else 0.0
        return F.scaled_dot_product_attention(x, x, x, dropout_p=p, is_causal=True)


def test_checks_of_parts_hold_on_every_branch() -> None:
    model = prepare(Causal().eval(), torch.randn(1, 5, 4))
    set_fake_quantize(model, FakeQuantState._FLOAT)
    assert len(model.graph_branches) == 2
    for training in (False, True):
        model.train(training)
        with pytest.raises(GuardError, match="the causal mask is made for 5 queries"):
            model(torch.randn(1, 6, 4))
