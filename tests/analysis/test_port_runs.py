"""Running only what a port reaches gives the scores of whole forwards, whatever the model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.analysis.ablation import OWN, VARIANTS, all_ports, ports
from qtune.analysis.port_runs import PortRuns
from qtune.analysis.sensitivity import sensitivity_tables
from qtune.capture.inputs import Inputs, as_inputs
from qtune.march import march
from qtune.modes import consistency_level, qat_mode
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import Metric
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_default_qconfig,
    get_qconfig,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .nets import Block, Detector, Sum, assert_same, calibrated, fingerprint
from .planted import planted

Scores = dict[tuple[str, str, str], list[float | None]]
Made = tuple[PreparedModel, Inputs]
X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
WILD = 1.5 * X
"""Beyond the calibrated range: round, clip, qint8, qint16 and fp16 all differ."""


class Shared(nn.Module):
    """One convolution and one activation, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 3, 3, padding=1), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.act(self.conv(x)) + x
        return x


class Branches(nn.Module):
    """A grouped transposed convolution, an attention with two quantized operands, a late branch."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)
        self.stem, self.side = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = self.up(F.relu(self.stem(x)))
        side = self.side(x).flatten(2)
        weights = torch.softmax(side @ side.transpose(1, 2), -1)
        return (weights @ y.flatten(2)).mean(2), {"late": side.amax(2), "shape": y.argmax(1)}


class Noisy(nn.Module):
    """Draws numbers before and behind what is quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(F.relu(self.a(x + torch.rand_like(x))) + torch.rand(1))
        return y + torch.rand_like(y)


class Dropped(nn.Module):
    """Dropouts, which do nothing in eval mode, before and behind what is quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 4, 1), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.drop(self.conv(self.drop(x))), 0.5, self.training)


class InPlace(nn.Module):
    """Changes a float value that was used before."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x).flatten(1)
        z = y * 2
        y.fill_diagonal_(0.5)
        return y + z


class Counting(nn.Module):
    """Changes a buffer in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        self.count += 1
        return y * self.count


class Strided(nn.Module):
    """Its numbers depend on the memory format of a feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_strided(self.conv(x), (2, 8), (144, 1))


WHOLE = ("values changed in place", "a buffer that changes")
"""Models of which no parts can run again."""
OWN_FORMAT = ("random operators", "numbers that depend on strides")
"""Models that run in the format that they have anyway."""


def of(model: nn.Module, setter: Any = None) -> Callable[[], Made]:
    return lambda: (calibrated(model, X, setter=setter), Inputs(WILD))


def detector() -> Made:
    ids = torch.tensor([1, 2])
    return calibrated(Detector(), (X, ids)), as_inputs((WILD, ids))


def with_int16_and_float16() -> Made:
    mapping = {"": "qint8", "conv": "qint16", "head": torch.float16}
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate(mapping)])
    with march("nash-p"):
        return calibrated(Block(), X, setter=setter), Inputs(WILD)


def learned() -> Made:
    qconfig = get_default_qconfig(activation_fake_quant="lsq", weight_fake_quant="pact")
    return calibrated(Block(), X, setter=QconfigSetter(qconfig, [])), Inputs(WILD)


def tables() -> Made:
    return pre_export(calibrated(Block(), X)), Inputs(WILD)


def kept_norm() -> Made:
    with qat_mode("with_bn"):
        return calibrated(Block(), X), Inputs(WILD)


def at_a_level() -> Made:
    with consistency_level(2):
        return calibrated(Block(), X), Inputs(WILD)


def hooked() -> Made:
    model = calibrated(Block(), X)
    model.conv.register_forward_hook(lambda m, args, result: result * 2)
    return model, Inputs(WILD)


def in_place() -> Made:
    model = calibrated(Block(), X)
    for port in ports(model):  # that of an input would overwrite the user's tensor
        port.fake_quantize.in_place = port.kind == "output" and port.op.op != "quant_stub"
    return model, Inputs(WILD)


MODELS: dict[str, Callable[[], Made]] = {
    "a residual block": of(Block()),
    "operators that are called three times": of(Shared()),
    "branches": of(Branches()),
    "several outputs": detector,
    "random operators": of(Noisy()),
    "dropouts": of(Dropped()),
    "values changed in place": of(InPlace()),
    "a buffer that changes": of(Counting()),
    "numbers that depend on strides": of(Strided()),
    "int16 and float16 ports": with_int16_and_float16,
    "learned scales": learned,
    "look-up tables": tables,
    "a kept batch norm": kept_norm,
    "a consistency level": at_a_level,
    "a hook of the user": hooked,
    "fake-quantizes that overwrite": in_place,
}


def scored(model: PreparedModel, inputs: Inputs, **options: Any) -> Scores:
    variants = (*VARIANTS, OWN)
    found = sensitivity_tables(
        model, inputs, Metric.L1, "0", variants=variants, shown=False, **options
    )
    rows = ((output, row) for output, table in found.items() for row in table.records())
    return {
        (output, row["op_name"], row["fake_stub_type"]): [row[f"{v}_L1"] for v in variants]
        for output, row in rows
    }


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_scores_are_those_of_whole_forwards(
    make: Callable[[], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = make()
    before = fingerprint(model)
    torch.manual_seed(3)
    before["rng"] = torch.get_rng_state()
    fast = scored(model, inputs)
    assert_same(before, model)
    monkeypatch.setattr("qtune.analysis.port_runs.prefers_channels_last", lambda model: False)
    parts = scored(model, inputs)
    monkeypatch.setattr(PortRuns, "_baseline", lambda self, *args: None)
    whole = scored(model, inputs)
    assert whole
    assert parts == whole  # in the model's own memory format every bit is the same
    for port, values in whole.items():
        # channels_last adds up in another order: 1e-7 of values near 1
        known = [value for value in values if value is not None]
        found = [value for value in fast[port] if value is not None]
        assert found == pytest.approx(known, rel=1e-3, abs=2e-6), port


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_without_room_for_a_cache_the_table_is_exactly_the_same(make: Callable[[], Made]) -> None:
    model, inputs = make()
    assert scored(model, inputs, max_cache_bytes=0) == scored(model, inputs)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_ask_for_it_run_whole_or_in_their_own_format(name: str) -> None:
    model, inputs = MODELS[name]()
    with all_float(model):
        baseline = PortRuns(model, inputs, Metric.L1, model(*inputs.args), VARIANTS).baseline
    assert (baseline is None) == (name in WHOLE)
    if baseline is not None:
        assert baseline.plan.channels_last == (name not in OWN_FORMAT)


@pytest.mark.parametrize("name", [*WHOLE, "a residual block"])
def test_within_inference_mode_the_scores_are_the_same(name: str) -> None:
    model, inputs = MODELS[name]()
    expected = scored(model, inputs)
    with torch.inference_mode():
        inside = Inputs(*[x.clone() for x in inputs.args])
        assert scored(model, inside) == expected


def runs_of(model: PreparedModel, x: Tensor, **options: Any) -> PortRuns:
    with all_float(model):
        runs = PortRuns(model, Inputs(x), Metric.ATOL, model(x), VARIANTS, **options)
        runs.scores(all_ports(model), shown=False)
    return runs


def test_what_is_equal_is_run_once_and_what_changes_nothing_is_not_run() -> None:
    x = torch.tensor([[1.0, 0.25]])
    model = calibrated(Sum(), x)
    # input: nothing clips, round is qint8, 1 and 0.25 are float16 numbers: qint8 and qint16 run.
    # weights of 1 alike
    assert runs_of(model, x).runs == 4


def test_the_cache_keeps_every_value_once_or_nothing() -> None:
    model = calibrated(Block(), X)
    baseline = runs_of(model, X).baseline
    assert baseline is not None
    assert baseline.is_cached
    maps = 6 * 2 * 8 * 8 * 8 * 4  # conv, relu, conv, add, sigmoid, and the stub's 3 channels
    assert 0 < baseline.cached_bytes <= maps
    small = runs_of(model, X, max_cache_bytes=baseline.cached_bytes - 1).baseline
    assert small is not None
    assert (small.is_cached, small.cached_bytes) == (False, 0)


def test_a_change_that_dies_out_ends_the_run() -> None:
    class Steps(nn.Module):
        """The sign of a value: small changes do not pass."""

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((self.fc(x) > 0).float())

    x = torch.rand(3, 4)
    model = calibrated(Steps(), x)
    found = scored(model, Inputs(x))
    assert set(found["", "_input_0_quant", "output"][2:]) == {0.0}
    calls: list[str] = []
    head = model.get_submodule("head")
    head.register_forward_hook(lambda *args: calls.append("head"))
    runs = runs_of(model, x)
    first = len(calls)
    fc = [port for port in all_ports(model) if port.op.name == "fc"]
    with all_float(model):
        runs.scores(fc, shown=False)
    assert len(calls) == first  # behind the sign nothing was run


def test_outputs_that_post_process_overwrites_do_not_change_later_scores() -> None:
    model = calibrated(Detector(), (X, torch.tensor([1])))
    inputs = as_inputs((X, torch.tensor([1])))

    def harmless(out: Any) -> Any:
        return out.boxes.sigmoid()

    def overwriting(out: Any) -> Any:
        return out.boxes.sigmoid_()

    tables = [
        sensitivity_tables(model, inputs, Metric.ATOL, "0", post_process=f, shown=False)
        for f in (harmless, overwriting)
    ]
    assert tables[0][""].rows == tables[1][""].rows
    assert inputs.args[1].tolist() == [1]


def test_outputs_come_to_the_metric_in_the_memory_format_of_the_model() -> None:
    x = torch.rand(2, 3, 8, 8)
    strides = set()

    @Metric.register("test_strides", False, "pertensor")
    def metric(a: Tensor, b: Tensor) -> float:
        strides.update((a.stride(), b.stride()))
        return 0.0

    try:
        model = calibrated(nn.Conv2d(3, 4, 1), x)
        sensitivity_tables(model, Inputs(x), Metric.test_strides, "0", shown=False)
    finally:
        Metric.unregister("test_strides")
    assert strides == {(256, 64, 8, 1)}


def test_casts_to_float16_have_the_variants_that_need_no_statistics() -> None:
    model, inputs = with_int16_and_float16()
    (table,) = sensitivity_tables(model, inputs, Metric.ATOL, "0", shown=False).values()
    casts = [row for row in table.records() if row["dtype"] == "torch.float16"]
    assert [(row["op_name"], row["fake_stub_type"]) for row in casts] == [("head", "output")]
    (cast,) = casts
    assert cast["fp16_ATOL"] > 0
    names = ("round", "clip", "qint8", "qint16", "qint8-qint16")
    assert {cast[f"{name}_ATOL"] for name in names} == {None}
    assert table.rows[-1][0] == "head"  # no gain is known: last
    dtypes = {(row["op_name"], row["fake_stub_type"]): row["dtype"] for row in table.records()}
    assert dtypes["conv", "weight"] == "qint8"
    own = scored(model, inputs)["", "head", "output"]
    assert own[4] == own[5] > 0


def test_with_the_casts_off_the_baseline_is_the_float_model() -> None:
    model, inputs = with_int16_and_float16()
    (x,) = inputs.args
    with all_float(model):
        found = model(x)
    set_fake_quantize(model, FakeQuantState._FLOAT)
    assert torch.equal(found, model(x))


def test_the_planted_net_runs_in_channels_last_and_agrees_with_its_own_format() -> None:
    net = planted()
    x = net.batches[0][:4]
    with all_float(net.model):
        own = net.model(x)
        baseline = PortRuns(net.model, Inputs(x), Metric.ATOL, own, VARIANTS).baseline
    assert baseline is not None
    assert baseline.plan.channels_last
    # logits near 1, sums of up to 576 products in 20 layers
    torch.testing.assert_close(baseline.outputs[0], own, rtol=0, atol=1e-4)
