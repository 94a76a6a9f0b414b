"""export_to_onnx: standard files that ONNX Runtime runs like the prepared model."""

from __future__ import annotations

import importlib
import io
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ArgumentError, ExportError, NotCalibratedError
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    PrepareMethod,
    QconfigSetter,
    convert,
    get_qconfig,
    prepare,
    prepare_qat,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.utils.onnx_helper import export_to_onnx

from .flow import calib, run

ort = pytest.importorskip("onnxruntime")
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.up, self.fc = nn.ConvTranspose2d(4, 4, 3, 2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(F.relu(self.bn(self.conv(x))))
        x = torch.sigmoid(x.mean((2, 3)))
        return F.softmax(self.fc(x.view(x.size(0), -1)), -1)


def written(model: nn.Module, **options: Any) -> tuple[onnx.ModelProto, Tensor]:
    file = io.BytesIO()
    export_to_onnx(model, X, file, operator_export_type=None, enable_onnx_checker=True, **options)
    session = ort.InferenceSession(file.getvalue())
    (found,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    return onnx.load_model_from_string(file.getvalue()), torch.from_numpy(found)


@pytest.mark.parametrize("opset", [11, 13, 20])
def test_the_file_gives_what_the_model_gives(opset: int) -> None:
    model = prepare(Net().eval(), X)
    calib(model, [X])
    proto, found = written(model, opset_version=opset)
    assert proto.opset_import[0].version == opset
    assert {node.domain for node in proto.graph.node} == {""}
    step = float(model.get_submodule("_generated_softmax_0.mul").activation_post_process.scale)
    # ties are rounded to even, and tables are float32 functions: a code may be one off
    assert (found - run(model, X)).abs().max() <= 1.001 * step
    kinds = Counter(node.op_type for node in proto.graph.node)
    weights = 0 if opset == 11 else 3
    assert kinds["DequantizeLinear"] == kinds["QuantizeLinear"] + weights
    axes = {a.i for n in proto.graph.node if n.op_type == "DequantizeLinear" for a in n.attribute}
    assert axes == (set() if opset == 11 else {0, 1})  # a transposed weight has its channels on 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("grid", [qint8, qint16])
def test_plain_torch_export_writes_the_same_operators(grid: QuantDType, tmp_path: Path) -> None:
    """The guide: torch.onnx.export can also be used, with this import before."""
    importlib.import_module("qtune.utils._register_onnx_ops")
    model = prepare(Net().eval(), X, QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": grid})]))
    calib(model, [X])
    path = str(tmp_path / "plain.onnx")
    torch.onnx.export(model, (X,), path, opset_version=11, dynamo=False)
    session = ort.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    _, expected = written(model)
    assert torch.equal(torch.from_numpy(found), expected)


def test_weights_are_exact_also_on_a_tie() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[-1.0, 0.5, 0.25], [0.1, -0.3, 0.0]]).reshape(2, 3, 1, 1))
    model = prepare(net, X)
    calib(model, [2 * X])
    for opset in (11, 13):
        _, found = written(model, opset_version=opset)
        # three products: float32 sums may differ in the last bit
        torch.testing.assert_close(found, run(model, X), rtol=1e-6, atol=1e-6)


def test_int16_is_written_exactly() -> None:
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": "qint16"})])
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2)).eval()
    model = prepare(net, X, setter)
    calib(model, [X])
    proto, found = written(model, opset_version=13)
    kinds = Counter(node.op_type for node in proto.graph.node)
    assert kinds["Floor"] == 2  # input and relu
    assert (kinds["QuantizeLinear"], kinds["DequantizeLinear"]) == (0, 1)  # codes of the weight
    step = float(model.get_submodule("1").activation_post_process.scale)
    # a float32 sum in another order can fall on the other side of a rounding border
    assert (found - run(model, X)).abs().max() <= 1.001 * step


@pytest.mark.parametrize("method", [PrepareMethod.EAGER, PrepareMethod.SYMBOLIC])
def test_models_of_all_methods_are_written(method: PrepareMethod, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    model = prepare(net, method=method)
    calib(model, [2 * X])  # the ends of the calibrated range are ties, which have another test
    expected = run(model, X)
    export_to_onnx(model, X, tmp_path / "net.onnx", input_names=["image"], output_names=["y"])
    session = ort.InferenceSession(str(tmp_path / "net.onnx"))
    (found,) = session.run(["y"], {"image": X.numpy()})
    scales = {name: float(q.scale) for name, kind, q in iter_stubs(model) if kind == "output"}
    weight = model.get_submodule("2").weight.detach()
    before = max(scale for name, scale in scales.items() if name != "2")
    off = before * float(weight.abs().sum((1, 2, 3)).max()) + scales.get("2", 0.0)
    # float32 sums in other orders can fall on the other side of a rounding border: every code of
    # the relu and of the result may be one off
    assert (torch.from_numpy(found) - expected).abs().max() <= 1.01 * off
    assert torch.equal(run(model, X), expected)
    proto = onnx.load(str(tmp_path / "net.onnx"))
    assert not any(node.doc_string for node in proto.graph.node)


def test_the_batch_may_be_open() -> None:
    model = prepare(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval(), X)
    calib(model, [2 * X])
    axes, file = {"image": {0: "n"}, "y": {0: "n"}}, io.BytesIO()
    names = {"input_names": ["image"], "output_names": ["y"]}
    options: dict[str, Any] = {"operator_export_type": None, "dynamic_axes": axes}
    export_to_onnx(model, X, file, **names, **options)  # type: ignore[arg-type]
    session = ort.InferenceSession(file.getvalue())
    assert session.get_inputs()[0].shape == ["n", 3, 8, 8]
    (found,) = session.run(None, {"image": torch.cat([X, X]).numpy()})
    (single,) = session.run(None, {"image": X.numpy()})
    assert (found == [*single, *single]).all()
    with pytest.raises(ArgumentError, match="give input_names and output_names, too"):
        export_to_onnx(model, X, io.BytesIO(), input_names=["image"], **options)


def test_what_can_not_be_written_is_named() -> None:
    model = prepare_qat(nn.Sequential(nn.Conv2d(3, 4, 3)).eval())
    with pytest.raises(NotCalibratedError, match=r"export_to_onnx: nothing is calibrated for: 0"):
        export_to_onnx(model, X, io.BytesIO())
    with pytest.raises(ArgumentError, match="opset_version must be 11 to 20, got 9"):
        export_to_onnx(model, X, io.BytesIO(), opset_version=9)
    with pytest.raises(ArgumentError, match="example_outputs is not needed"):
        export_to_onnx(model, X, io.BytesIO(), example_outputs=X)

    class Lacking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x)

    with pytest.raises(ExportError, match=r"torch can't write Lacking in opset 11"):
        export_to_onnx(Lacking(), X, io.BytesIO(), operator_export_type=None)


def test_no_half_file_is_left(tmp_path: Path) -> None:
    model = prepare_qat(nn.Sequential(nn.Conv2d(3, 4, 3)).eval())
    with pytest.raises(NotCalibratedError):
        export_to_onnx(model, X, tmp_path / "net.onnx")
    assert not list(tmp_path.glob("*.onnx*"))


def test_a_converted_model_is_refused_with_what_writes_it(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    prepared = prepare(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), x)
    calib(prepared, [x])
    with pytest.raises(ArgumentError, match=r"a converted model runs programs.*export_hbir"):
        export_to_onnx(convert(prepared), x, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
