"""pre_export, export and convert under the toolchain's names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.dtype import qint16
from qtune.errors import ExportError, NotCalibratedError
from qtune.nn.qat import iter_stubs
from qtune.nn.table import TableOp
from qtune.quantization import FakeQuantState, QconfigSetter, get_qconfig, set_fake_quantize
from qtune.quantization.hbdk4 import convert, export, pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .flow import calib, off, op, prep, run


class Net(nn.Module):
    """One activation object for two values on different grids."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.a, self.b = nn.Sigmoid(), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.b(self.act(self.a(x))) + self.act(x).mean(1, keepdim=True))


X = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(3))


def test_pre_export_makes_tables_in_a_copy() -> None:
    p = prep(Net(), X)
    calib(p, [X])
    exported = pre_export(p)
    tables = [o for _, o in exported.operators() if isinstance(o, TableOp)]
    assert len(tables) == 3
    assert not [o for _, o in p.operators() if isinstance(o, TableOp)]
    assert torch.equal(run(exported, X), run(p, X))
    assert {t.name for t in tables} == {"act", "_generated_silu_0"}
    assert torch.equal(run(pre_export(exported), X), run(p, X))
    assert {(n, k) for n, k, _ in iter_stubs(exported)} == {(n, k) for n, k, _ in iter_stubs(p)}


def test_a_shared_activation_has_one_table_for_each_grid_of_its_inputs() -> None:
    p = prep(Net(), X)
    calib(p, [X * 3])
    exported = pre_export(p)
    first, second = (o for _, o in exported.operators() if o.name == "act")
    assert first is not second
    assert not torch.equal(first.input_scale, second.input_scale)
    assert torch.equal(run(exported, X), run(p, X))


def test_pre_export_in_place() -> None:
    p = prep(Net(), X)
    calib(p, [X])
    expected = run(p, X)
    assert pre_export(p, inplace=True) is p
    assert isinstance(op(p, "_generated_silu_0"), TableOp)
    assert torch.equal(run(p, X), expected)


def test_float_state_of_a_pre_exported_model_is_the_float_model() -> None:
    model = Net().eval()
    p = prep(model, X)
    calib(p, [X])
    exported = pre_export(p)
    off(exported)
    # numerics page section 4: 1e-5 where batch norm is folded or an operator decomposed
    assert torch.allclose(run(exported, X), run(model, X), rtol=1e-5, atol=1e-6)


def test_wrong_states_are_refused() -> None:
    p = prep(Net(), X)
    with pytest.raises(NotCalibratedError, match="_input_0_quant"):
        pre_export(p)
    calib(p, [X])
    with pytest.raises(ExportError, match="training mode"):
        pre_export(p.train())
    p.eval()
    for state in (FakeQuantState.CALIBRATION, FakeQuantState._FLOAT):
        set_fake_quantize(p, state)
        with pytest.raises(ExportError, match=r"VALIDATION\) first"):
            pre_export(p)
    set_fake_quantize(p, FakeQuantState.QAT)
    pre_export(p)
    with pytest.raises(ExportError, match="made by prepare.*call prepare"):
        pre_export(Net())


def test_export_applies_pre_export_and_leaves_the_model() -> None:
    template = ModuleNameTemplate({"": qint16})
    p = prep(Net(), X, qconfig_setter=QconfigSetter(get_qconfig(), [template]))
    calib(p, [X])
    before = run(p, X)
    qat_bc = export(p, X, name="main", input_names=("image",), output_names="score")
    assert torch.equal(qat_bc[0](X), run(pre_export(p), X))
    assert torch.equal(run(p, X), before)
    assert [v.name for v in qat_bc[0].flatten_inputs] == ["image"]
    step = float(op(p, "_generated_silu_0").activation_post_process.scale)
    integer = convert(qat_bc, "nash-e")[0](X)
    # each of five int16 operators may be a step off, which the next ones multiply
    assert (integer - qat_bc[0](X)).abs().max() <= 8 * step
