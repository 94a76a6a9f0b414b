"""Which grid a value is on, told from the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import march
from qtune.dtype import qint8, qint16
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import operand_quantizer, value_quantizers
from qtune.quantization import QconfigSetter, get_qconfig, prepare
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.quantizers.fake_quantize import FakeQuantize


@pytest.fixture(autouse=True)
def _march(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with march.march("nash-e"):
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(2, 5)
        self.row = nn.Parameter(torch.ones(1, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.norm(self.conv(x)))
        a, _ = F.max_pool2d(y, 2).flatten(2).mean(-1).chunk(2, 1)
        return self.last(a + self.row), a.argmax(1)


def quantizers(model: PreparedModel) -> dict[str, FakeQuantize | None]:
    found = value_quantizers(model)
    return {str(node.meta.get("name", node.name)): found[node] for node in model.graph.nodes}


def test_values_lead_back_to_the_fake_quantize_that_made_them() -> None:
    p = prepare(Net(), torch.randn(2, 3, 4, 4))
    found = quantizers(p)
    relu = p.get_submodule("_generated_relu_0").activation_post_process
    mean = p.get_submodule("_generated_mean_0").activation_post_process
    assert found["x"] is None
    assert found["conv"] is None
    assert found["norm"] is None
    assert found["_generated_relu_0"] is relu
    assert found["_generated_max_pool2d_0"] is relu
    assert found["_generated_flatten_0"] is relu
    assert found["_generated_chunk_0"] is mean
    assert found["getitem"] is mean
    assert found["_generated_argmax_0"] is None
    assert found["last"] is None
    assert found["_output_0_dequant"] is None


def test_operands_are_seen_after_their_own_fake_quantize() -> None:
    template = ModuleNameTemplate({"": qint16, "last": {"input": qint8}})
    setter = QconfigSetter(get_qconfig(), [template])
    p = prepare(Net(), torch.randn(2, 3, 4, 4), setter)
    found = value_quantizers(p)
    add, add_op = next((n, o) for n, o in p.operators() if o.op == "add")
    assert operand_quantizer(add_op, add, 1, found) is add_op.input_fake_quants["1"]
    assert operand_quantizer(add_op, add, 0, found) is found[add.args[0]]
    last, op = next((n, o) for n, o in p.operators() if o.name == "last")
    quantizer = operand_quantizer(op, last, 0, found)
    assert quantizer is op.input_fake_quants["0"]
    assert quantizer.dtype is qint8
    assert operand_quantizer(op, last, 1, found) is op.weight_fake_quant
    assert operand_quantizer(op, last, 2, found) is None
