"""conv3d and transposed convolutions of one and three axes: fusion, groups, limits, spellings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint16
from qtune.march import march
from qtune.nn.qat import iter_stubs
from qtune.ops.registry import find_module, spec
from qtune.quantization import QconfigSetter, get_qconfig, prepare
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from tests.ops.steps import steps_apart
from tests.ops.whole import quiet, whole

__all__ = ["quiet"]

LAYERS: Mapping[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS: Mapping[int, Any] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def with_statistics(norm: Any) -> Any:
    """A batch norm that scales and moves."""
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(-2, 2)
        norm.bias.normal_()
    return norm


class Block(nn.Module):
    """conv + batch norm + add + relu, then a convolution that keeps the result quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3, padding=1, bias=False)
        self.bn = with_statistics(nn.BatchNorm3d(4))
        self.skip = nn.Conv3d(2, 4, 1)
        self.down = nn.Conv3d(4, 2, 3, stride=2, padding=(0, 1, 1), groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.bn(self.conv(x)) + self.skip(x)))


def test_conv3d_fuses_batch_norm_add_and_relu_into_one_integer_operator() -> None:
    result = whole(Block(), torch.randn(2, 2, 5, 6, 7))
    convs = [n.op_type for n in result.quantized.model.graph if n.op_type.startswith("QConv")]
    assert convs == ["QConv", "QConvAdd", "QConv"]
    # numerics.md section 3: one step for each of the three convolutions at most.
    assert steps_apart(result) <= 3.0
    assert result.calib.get_submodule("bn").op == "identity"


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("cin", "cout", "groups"), [(4, 6, 1), (4, 6, 2), (6, 6, 6), (6, 3, 3)])
def test_batch_norm_folds_into_grouped_transposed_convs(
    rank: int, cin: int, cout: int, groups: int
) -> None:
    """A10 at one and three axes; ``whole`` compares the folded model with the float one."""
    conv = LAYERS[rank](cin, cout, 3, stride=2, padding=1, output_padding=1, groups=groups)
    model = nn.Sequential(conv, with_statistics(NORMS[rank](cout)), nn.ReLU())
    result = whole(model, torch.randn(2, cin, *[4, 3, 2][:rank]))
    assert result.calib.get_submodule("1").op == "identity"
    assert steps_apart(result) <= 1.0


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_each_output_channel_of_a_transposed_conv_has_its_scale(rank: int, groups: int) -> None:
    """A12 at one and three axes."""
    conv = LAYERS[rank](2 * groups, 2 * groups, 2, groups=groups, bias=False)
    with torch.no_grad():
        conv.weight.fill_(1.0)
        conv.weight[:, 1] = 100.0
    result = whole(nn.Sequential(conv), torch.rand(1, 2 * groups, *[4] * rank))
    scales = {port: stub.scale for name, port, stub in iter_stubs(result.calib) if name == "0"}
    small, large = 1.0 / 127.5, 100.0 / 127.5
    # float32 scales against their formula in float64: the last bits differ
    assert scales["weight"].tolist() == pytest.approx([small, large] * groups, rel=1e-6)


def test_functional_convs_with_keywords_only_are_quantized() -> None:
    """A13 for the new spellings."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 2, 2, 2, 2))
            self.t = nn.Parameter(torch.randn(3, 2, 2, 2, 2))
            self.b = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.conv3d(input=x, weight=self.w, bias=self.b, padding=1)
            return F.conv_transpose3d(input=torch.relu(y), weight=self.t, padding=1)

    result = whole(Net(), torch.randn(1, 2, 3, 4, 5))
    assert steps_apart(result) <= 2.0
    assert "QConvTranspose" in [n.op_type for n in result.quantized.model.graph]


@pytest.mark.parametrize("size", [(9,), (4, 5), (3, 4, 5)])
def test_output_size_reaches_the_integer_model(size: tuple[int, ...]) -> None:
    rank = len(size)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = LAYERS[rank](2, 2, 3, stride=2, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.up(x, output_size=[2 * n for n in size]))

    result = whole(Net(), torch.randn(1, 2, *size))
    assert result.integer()[0].shape[2:] == tuple(2 * n for n in size)
    assert steps_apart(result) <= 1.0


def reason(name: str, series: str, shapes: Any, **attrs: Any) -> str:
    rank = len(shapes[1]) - 2
    full = {"stride": (1,) * rank, "dilation": (1,) * rank, "padding": (0,) * rank, "groups": 1}
    (rule,) = (rule for rule in spec(name).march if series in rule.series)
    assert rule.check is not None
    return str(rule.check(full | attrs, shapes, ()))


def test_limits_of_conv3d() -> None:
    """toolchain_facts 7.1 and 7.2."""
    small = [(1, 2, 4, 4, 4), (4, 2, 3, 3, 3), None]
    assert reason("conv3d", "nash", small) == "None"
    assert "stride" in reason("conv3d", "nash", small, stride=(2, 1, 2))
    assert "stride" in reason("conv3d", "bayes", small, stride=(3, 3, 3))
    assert "kernel" in reason("conv3d", "nash", [(1, 2, 9, 9, 9), (4, 2, 1, 10, 1), None])
    assert "batch" in reason("conv3d", "nash", [(129, 2, 4, 4, 4), (4, 2, 3, 3, 3), None])
    assert "channels" in reason("conv3d", "nash", [(1, 4097, 1, 1, 1), (4, 4097, 1, 1, 1), None])
    assert not [rule for rule in spec("conv3d").march if "bernoulli" in rule.series]


def test_int16_is_replaced_by_int8_in_volumes() -> None:
    weights = ModuleNameTemplate({"0": {"weight": qint16}})
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint16}), weights])
    model = nn.Sequential(nn.Conv3d(2, 2, 2), nn.ReLU()).eval()
    with march("nash-e"):
        prepared = prepare(model, (torch.randn(1, 2, 3, 3, 3),), setter)
    dtypes = {f"{name} {port}": str(stub.dtype) for name, port, stub in iter_stubs(prepared)}
    assert dtypes["1 output"] == "qint8"
    assert dtypes["0 input-0"] == "qint8"
    assert dtypes["0 weight"] == "qint8"


@pytest.mark.parametrize(
    ("rank", "mode"),
    [(1, "reflect"), (2, "reflect"), (2, "replicate"), (2, "circular"), (3, "circular")],
)
def test_other_padding_modes_run_in_integers(rank: int, mode: Any) -> None:
    cls: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
    conv = cls(2, 3, 3, padding=(2, 1, 1)[:rank], padding_mode=mode)
    result = whole(nn.Sequential(conv, nn.ReLU()), torch.randn(1, 2, *[5, 4, 6][:rank]))
    assert steps_apart(result) <= 1.0


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_named_paddings_of_volumes_run_in_integers(padding: Any) -> None:
    conv = nn.Conv3d(2, 3, (3, 1, 3), padding=padding)
    assert steps_apart(whole(nn.Sequential(conv, nn.ReLU()), torch.randn(1, 2, 4, 3, 5))) <= 1.0


@pytest.mark.parametrize(
    ("lazy", "name"),
    [
        (nn.LazyConv1d(3, 3), "conv1d"),
        (nn.LazyConv2d(3, 3), "conv2d"),
        (nn.LazyConv3d(3, 3), "conv3d"),
        (nn.LazyConvTranspose1d(3, 3), "conv_transpose1d"),
        (nn.LazyConvTranspose2d(3, 3), "conv_transpose2d"),
        (nn.LazyConvTranspose3d(3, 3), "conv_transpose3d"),
        (nn.LazyLinear(3), "linear"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lazy_layers_are_known_once_they_have_weights(lazy: nn.Module, name: str) -> None:
    x = torch.randn(2, 2, *[4] * (int(name[-2]) if name.endswith("d") else 0))
    model = nn.Sequential(lazy, nn.ReLU())
    model(x)
    found = find_module(type(lazy))
    assert found is not None
    assert found[0].name == name
    assert steps_apart(whole(model, x)) <= 1.0
