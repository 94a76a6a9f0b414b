"""Small models that fail: for every assertion one that it refuses, with what it has to say.

No pytest in here: the same cases run in plain Python. All numbers are exact: weights, inputs and
scales are sums of few powers of two, so no float sum rounds, whatever the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qtune.testing
from qtune.qconfig.templates import ConvDtypeTemplate, ModuleNameTemplate
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.testing import (
    OnnxStages,
    Stages,
    assert_accuracy_drop_below,
    assert_bit_exact,
    assert_close,
    assert_consistency,
    assert_latency_below,
    assert_no_saturation,
    assert_no_shared_ops,
    assert_no_unfused,
    assert_on_bpu,
    assert_qconfig,
    assert_scale_in,
    assert_sensitivity_below,
)

from . import nets, onnx_nets

X = torch.arange(-64, 64).reshape(2, 1, 8, 8) / 64
"""Every multiple of 1/64 from -1 to 63/64 once."""
FEW = {"c0": 0.5, "c1": 0.25, "c2": 1.0, "c3": 0.75, "c4": 0.125, "c5": 0.75}
"""Ranges that are too small, each by its own factor."""


class Chain(nn.Module):
    """Seven 1x1 convolutions of one channel; ``c1`` is the one whose range is too small."""

    WEIGHTS = (1.0, 1.0, 1.5, 0.75, 0.5, 1.5, 0.5)

    def __init__(self) -> None:
        super().__init__()
        for index, weight in enumerate(self.WEIGHTS):
            conv = nn.Conv2d(1, 1, 1)
            nn.init.constant_(conv.weight, weight)
            nn.init.zeros_(conv.bias)
            self.add_module(f"c{index}", conv)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.children():
            x = conv(x)
        return x


class Apart(Chain):
    """Three convolutions run twice each, so that they can't be fused with what follows them."""

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.c0, self.c1, self.c2):
            x = F.relu(conv(F.relu(conv(x))))
        return self.c6(self.c1(x))


class Fallback(Chain):
    """Two activations that the configuration keeps float, between quantized operators."""

    def __init__(self) -> None:
        super().__init__()
        self.elu = nn.ELU()
        self.tanh = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.c2(self.tanh(self.c1(self.elu(self.c0(x)))))


def setter(thresholds: Mapping[str, float], floats: tuple[str, ...] = ()) -> Any:
    """Ranges of 4 for results and of 2 for weights, other ones by name; ``floats`` stay float."""
    ranges = {"": {"dtype": "qint8", "threshold": {"output": 4.0, "weight": 2.0}}}
    own = {name: {"threshold": value} for name, value in thresholds.items()}
    kept = dict.fromkeys(floats, torch.float32)
    return QconfigSetter(
        reference_qconfig=get_qconfig(),
        templates=[ModuleNameTemplate({**ranges, **own, **kept}), ConvDtypeTemplate()],
    )


class Models:
    """The models of the cases. ``build``: ``Stages``, or the fixture ``qtune_stages``."""

    def __init__(self, build: Callable[..., Stages]) -> None:
        self.build = build

    def make(self, cls: type[nn.Module], **config: Any) -> Stages:
        return self.build(cls, [X], march="nash-e", name="net", qconfig_setter=setter(**config))

    @cached_property
    def narrow(self) -> Stages:
        """``c1`` covers 0.5, its results reach 1."""
        return self.make(Chain, thresholds={"c1": 0.5})

    @cached_property
    def tight(self) -> Stages:
        """Most ranges are too small, each by its own factor."""
        return self.make(Chain, thresholds=FEW)

    @cached_property
    def apart(self) -> Stages:
        return self.make(Apart, thresholds={})

    @cached_property
    def fallback(self) -> Stages:
        return self.make(Fallback, thresholds={}, floats=("elu", "tanh"))

    def onnx(self, thresholds: Mapping[str, float], shared: str = "") -> OnnxStages:
        """The chain once more, as a calibrated ONNX model with the same grids."""
        model = onnx_nets.chain(thresholds, shared)
        return OnnxStages(model, march="nash-e", name="net", store=self.narrow.store)


@dataclass(frozen=True)
class Case:
    """``worst``: names in the lines below "worst of"; ``first``: in that of the first bad one.

    ``texts``: what else the message holds. ``artefact``: the file that it names.
    """

    call: Callable[[Models], object]
    headline: str
    worst: tuple[str, ...] = ()
    first: str = ""
    texts: tuple[str, ...] = ()
    artefact: str = ""
    model: str = "net"


TIGHT = tuple(f"t{i}_HzCalibration" for i in (4, 1, 0, 2, 3))
LOOK = "shape (2, 1, 8, 8)"

CASES: dict[str, Case] = {
    "assert_consistency": Case(
        lambda m: assert_consistency(m.narrow.float, m.narrow.quantized_bc, inputs=X, max_atol=0.1),
        "consistency: output: got ATOL 0.21875, limit <= 0.1",
        ("c2", "c3", "c1", "c5", "c4"),
        "c1",
        (
            f": 0.5, qint8, {LOOK}, scale 0.00390625, 25.00% of the codes differ, 51.56% saturated",
            f"beyond the limit:\n  output: 0.21875, torch.float32, {LOOK}\n",
            "raise it to qint16 or give it a fixed scale",
        ),
        "quantized.bc",
    ),
    "assert_consistency per layer": Case(
        lambda m: assert_consistency(
            m.narrow.float, m.narrow.quantized_bc, inputs=X, max_atol=0.1, per_layer=True
        ),
        "consistency: c2: got ATOL 0.75, limit <= 0.1",
        ("c2", "c3", "c1", "c5", "c4"),
        "c1",
        (
            "worst of 7 bad layers (ATOL of each operator):",
            f": 0.75, qint8, {LOOK}, scale 0.03125, 80.47% of the codes differ, 0.00% saturated",
        ),
        "quantized.bc",
    ),
    "assert_consistency in steps": Case(
        lambda m: assert_consistency(
            m.tight.float, m.tight.quantized_bc, inputs=X, max_qscale_diff=1
        ),
        "consistency: c4: got 448 steps, limit <= 1",
        ("c4", "c1", "c2", "c0", "c5"),
        "c0",
        (
            f": 448, qint8, {LOOK}, scale 0.0009765625, 0.00% of the codes differ",
            "without a scale, not counted in steps: c6, ",
            "the baseline's values lie beyond the range",
        ),
        "quantized.bc",
    ),
    "assert_sensitivity_below": Case(
        lambda m: assert_sensitivity_below(m.tight.calib, X, metric="ATOL", limit=0.01),
        "sensitivity_below: c4 output: got ATOL 0.32812, limit <= 0.01",
        ("c4 output", "c1 output", "c0 output", "c2 output", "c3 output"),
        "c0 output",
        (
            f": 0.328125, qint8, {LOOK}, scale 0.0009765625, 77.34% saturated",
            'ModuleNameTemplate({"c4": {"threshold": 0.5625}})',
        ),
        "calib.pt",
    ),
    "assert_no_shared_ops": Case(
        lambda m: assert_no_shared_ops(m.apart.calib),
        "no_shared_ops: c1: got 3 calls, limit 1 call",
        ("c1", "c0", "c2"),
        "c0",
        ("failing.py:", "Give each call a module of its own"),
        "calib.pt",
    ),
    "assert_no_unfused": Case(
        lambda m: assert_no_unfused(m.apart.calib),
        "no_unfused: c0 + _generated_relu_0: got 6 unfused, limit 0 unfused",
        (
            "c0 + _generated_relu_0",
            "c0 + _generated_relu_1",
            "c1 + _generated_relu_2",
            "c1 + _generated_relu_3",
            "c2 + _generated_relu_4",
        ),
        "c0 + _generated_relu_0",
        ("worst of 6 bad patterns (not fused):", "reused: c1 is called 3 times"),
        "calib.pt",
    ),
    "assert_qconfig": Case(
        lambda m: assert_qconfig(
            m.narrow.calib,
            dtypes={"": "qint8", "c2": "qint16", "c4 weight": "qint16", "c6": "torch.float32"},
            fixed_scales={"c3": 1 / 64, "c0": 1 / 32, "c1": 1 / 128, "c5": 1 / 8},
            high_precision_outputs=["c5"],
        ),
        "qconfig: c1 output: got scale 0.00390625, limit scale 0.0078125, fixed",
        ("c1 output", "c2 output", "c3 output", "c4 weight", "c5 output"),
        "c1 output",
        (
            "worst of 6 bad ports",
            "got qint8, expected qint16; decided by ModuleNameTemplate '' output, qint8",
            "got qint8, expected qint16; decided by ConvDtypeTemplate, qint8, scale 0.015625",
            f"expected high precision; decided by ModuleNameTemplate '' output, qint8, {LOOK}",
        ),
        "calib.pt",
    ),
    "assert_on_bpu": Case(
        lambda m: assert_on_bpu(m.fallback.quantized_bc),
        "on_bpu: elu: got 2 on the CPU, limit 0",
        ("elu", "tanh"),
        "elu",
        ("output kept float by ModuleNameTemplate 'tanh' output, torch.float32",),
        "quantized.bc",
    ),
    "assert_on_bpu prepared": Case(
        lambda m: assert_on_bpu(m.fallback.calib, allowed="e*"),
        "on_bpu: tanh: got 1 on the CPU, limit 0",
        ("tanh",),
        "tanh",
        ("may run on the CPU: elu",),
        "calib.pt",
    ),
    "assert_no_saturation": Case(
        lambda m: assert_no_saturation(m.tight.calib, inputs=X, max_share=0.01),
        "no_saturation: c4 output: got 77.344% saturated, limit <= 1%",
        ("c4 output", "c1 output", "c0 output", "c2 output", "c3 output"),
        "c0 output",
        (
            f": 64 of 128 clipped, qint8, {LOOK}, scale 0.00390625, 50.00% saturated",
            "c4 output covers 0.124, these inputs reach 0.5625.",
        ),
        "calib.pt",
    ),
    "assert_no_saturation codes": Case(
        lambda m: assert_no_saturation(m.tight.quantized_bc, inputs=X, max_share=0.01),
        "no_saturation: c1: got 76.562% saturated, limit <= 1%",
        ("c1", "c4", "c0"),
        "c0",
        (f": 66 of 128 at the ends, qint8, {LOOK}, scale 0.00390625, 51.56% saturated",),
        "quantized.bc",
    ),
    "assert_scale_in": Case(
        lambda m: assert_scale_in(m.tight.calib, low=1 / 128, ranges={"* weight": (None, 1 / 128)}),
        "scale_in: c4 output: got 0.0009765625, limit >= 0.0078125",
        ("c4 output", "c1 output", "c0 weight", "c0 output", "c1 weight"),
        "c0 weight",
        ("scale 0.015625, limit <= 0.0078125, qint8",),
        "calib.pt",
    ),
    "assert_bit_exact": Case(
        lambda m: assert_bit_exact(
            m.narrow.quantized_bc,
            inputs=X,
            against=nets.damaged(m.narrow.quantized_bc, "c2", change=5000),
        ),
        "bit_exact: c2: got 128 of 128 elements differ, limit 0",
        ("c2", "c3", "c4", "c5", "c6"),
        "c2",
        (
            f": 128, qint8, {LOOK}, scale 0.03125, 100.00% of the codes differ",
            "output: first difference at (0, 0, 0, 0): -0.203125, expected -0.109375",
        ),
        "quantized.bc",
    ),
    "assert_consistency of ONNX": Case(
        lambda m: assert_consistency(
            (s := m.onnx({"c1": 0.5})).float, s.quantized_bc, inputs=X, max_atol=0.1
        ),
        "consistency: output y: got ATOL 0.21875, limit <= 0.1",
        ("c2", "c3", "c1", "c5", "c4"),
        "c1",
        (
            f": 0.5, qint8, {LOOK}, scale 0.00390625, 25.00% of the codes differ, 51.56% saturated",
            'quant_config={"node_config": ',
        ),
        "quantized.bc",
    ),
    "assert_sensitivity_below of ONNX": Case(
        lambda m: assert_sensitivity_below(
            m.onnx(FEW).calibrated, X, metric="chebyshev", limit=0.01
        ),
        "sensitivity_below: t4_HzCalibration: got chebyshev 0.32812, limit <= 0.01",
        TIGHT,
        "t0_HzCalibration",
        (
            f"(c5): 0.328125, qint8, {LOOK}, scale 0.0009765625, 77.34% saturated",
            "t4_HzCalibration covers 0.125, these inputs reach 0.5625",
        ),
        "calibrated.onnx",
    ),
    "assert_no_saturation of ONNX": Case(
        lambda m: assert_no_saturation(m.onnx(FEW).calibrated, inputs=X, max_share=0.01),
        "no_saturation: t4_HzCalibration: got 77.344% saturated, limit <= 1%",
        TIGHT,
        "t0_HzCalibration",
        (f": 64 of 128 clipped, qint8, {LOOK}, scale 0.00390625, 50.00% saturated",),
        "calibrated.onnx",
    ),
    "assert_no_shared_ops of ONNX": Case(
        lambda m: assert_no_shared_ops(m.onnx({}, shared="c5").calibrated),
        "no_shared_ops: w1: got 3 nodes, limit 1 node",
        ("w1",),
        "w1",
        ("w1 (c1;c5;c6): 3", "Give each node a weight of its own"),
        "calibrated.onnx",
    ),
    "assert_close": Case(
        lambda m: assert_close(X, X + torch.eye(8) / 32, steps=1, scale=1 / 64, max_mismatches=2),
        "close: values: got 16 of 128 elements miss, limit 2 within 1 step",
        ("[0, 0, 0, 0]", "[0, 0, 1, 1]", "[0, 0, 2, 2]", "[0, 0, 3, 3]", "[0, 0, 4, 4]"),
        texts=(
            "got -1, expected -0.96875, 2 steps apart",
            "first in row-major order: [0, 0, 0, 0]",
        ),
        model="values",
    ),
    "assert_close NaN": Case(
        lambda m: assert_close(
            {"a": torch.tensor([1.0, float("nan")]), "b": torch.zeros(1)},
            {"a": torch.tensor([1.0, 2.0]), "b": torch.ones(1)},
            atol=0.5,
            max_mismatches=2,
            equal_nan=True,
        ),
        "close: a [1]: got nan, limit 2 within atol 0.5",
        ("a", "b"),
        texts=(
            "worst of 2 bad outputs (largest distance):",
            "2 of 3 elements miss, 2 may; worst:\n  a [1]: got nan, expected 2\n  b [0]: got 0, ",
        ),
        model="values",
    ),
    "assert_close type": Case(
        lambda m: assert_close(X, X.double().flatten(), atol=1.0, name="input"),
        "close: input: got float32 (2, 1, 8, 8), limit float64 (128,)",
        texts=("Nothing is cast or broadcast",),
        model="input",
    ),
    "assert_accuracy_drop_below": Case(
        lambda m: assert_accuracy_drop_below(
            m.narrow.float, m.narrow.quantized_bc, large, max_drop=1
        ),
        "accuracy_drop_below: accuracy: got 20.31 pp drop, 0.20312 to 0, limit <= 1 pp",
        texts=("accuracy of the baseline: 0.203125, now 0.0", "finds the operator"),
        artefact="quantized.bc",
    ),
    "assert_latency_below": Case(
        lambda m: assert_latency_below(m.narrow.quantized_bc, max_us=0.001),
        "latency_below: got 0.08089 us (static estimate), limit <= 0.001 us",
        ("c6", "_input_0_quant", "c0", "c1", "c2"),
        texts=("the longest of 9 operators:", "qtune::QConv, bound by memory"),
        artefact="quantized.bc",
    ),
}


def large(model: Any) -> float:
    """Which share of the results is above 1/4."""
    return float((model(X) > 0.25).double().mean())


def assertions() -> set[str]:
    """The names of all assertions."""
    return {name for name in qtune.testing.__all__ if name.startswith("assert_")}
