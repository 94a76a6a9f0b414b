"""A transformer block and an LSTM classifier from float to integers, through the tools."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.check.qat_model import check_qat_model
from tests.ops.whole import Whole, check, relative


class Translator(nn.Module):
    """Tokens by embedding, one encoder layer with padding, a class per token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.position = nn.Parameter(torch.randn(1, 6, 8) * 0.3)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.position
        return self.head(self.block(x, src_key_padding_mask=padding))


class Listener(nn.Module):
    """Classifies a sequence by the last state of a two-way LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(4, 6)
        self.lstm = nn.LSTM(6, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.lstm(torch.tanh(self.front(x)))
        return self.head(torch.cat([h[0], h[1]], -1))


G = torch.Generator().manual_seed(2)
PADDING = torch.arange(6) >= torch.tensor([[6], [4], [5]])
NETS = {
    "translator": (Translator, (torch.randint(20, (3, 6), generator=G), PADDING)),
    "listener": (Listener, (torch.randn(3, 4, 4, generator=G),)),
}


@pytest.fixture(scope="module", params=NETS, ids=str)
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    make, inputs = NETS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QTUNE_RUN_DIR", "")
        torch.manual_seed(0)
        # A dozen int8 roundings and two norms behind one another.
        return check(make(), *inputs, bar=0.08)


def test_fake_and_integer_results_agree(net: Whole) -> None:
    for fake, integer in zip(net.fake(), net.integer(), strict=True):
        # int16 tables one step apart can flip an int8 step of what follows: two steps.
        assert relative(integer, fake) < 2 / 127


def part_of(net: Whole) -> str:
    """An operator inside of the composed one."""
    is_listener = isinstance(net.model, Listener)
    return "lstm.tanh_c_l0_reverse" if is_listener else "block.self_attn.softmax.exp"


def test_the_structure_check_reads_the_parts(net: Whole) -> None:
    assert part_of(net) in str(check_qat_model(net.calib, net.inputs))


def test_analysis_compares_and_ranks_the_parts(net: Whole, tmp_path: Path) -> None:
    model, calib = copy.deepcopy(net.model), copy.deepcopy(net.calib)
    analysis = QuantAnalysis(model, calib, "fake_quant", out_dir=str(tmp_path))
    analysis.set_bad_case(net.inputs)
    analysis.run()
    assert part_of(net) in analysis.compare_per_layer().names
    tables = analysis.sensitivity(prefixes=(part_of(net),))
    assert part_of(net) in str(tables)
