"""hybrid=True: operators on the CPU, in float between dequantize and quantize, all stages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import march as marches
from qtune.bpu.convert import advice_items, convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.errors import ExportError, MarchError, PrepareError
from qtune.nn.prepared import PreparedModel
from qtune.quantization import DeQuantStub, FakeQuantState, QuantStub, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class SeluModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.selu(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.prelu = nn.Conv2d(3, 3, 1), nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        return F.selu(self.prelu(self.conv(x)))


class Documented(nn.Module):
    """The example of the documents: functions that bernoulli2 lacks, layers that the user moves."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv0, self.prelu, self.conv1 = nn.Conv2d(3, 3, 1), nn.PReLU(), Block()
        self.conv2, self.conv3, self.conv4 = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.selu, self.identity = SeluModule(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.identity(self.conv0(self.quant(x)))
        x = self.conv1(F.selu(self.prelu(x)))
        x = self.identity(self.conv3(self.conv2(x)))
        result: Tensor = self.dequant(self.selu(self.conv4(x)))
        return result


CHOICE = {"module_name": ["conv1.conv", "conv3"], "module_type": [SeluModule]}


def calibrated(model: nn.Module, march: str, **options: Any) -> PreparedModel:
    with marches.march(march):
        prepared = prepare(model.eval(), X, **options).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(X)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def reasons(prepared: PreparedModel) -> dict[str, str]:
    return {item.name: item.reason for item in prepared.float_ops}


@pytest.mark.parametrize("march", ["bernoulli2", "bayes-e", "nash-e"])
def test_all_stages_of_the_documented_model_agree(march: str) -> None:
    prepared = calibrated(Documented(), march, hybrid=True, hybrid_dict=CHOICE)
    chosen = {"conv1.conv", "conv3", "_generated_selu_2"}
    lacking = {"prelu", "_generated_selu_0", "conv1.prelu", "_generated_selu_1"}
    assert set(reasons(prepared)) == chosen | (lacking if march == "bernoulli2" else set())

    qat = export(prepared, X)
    assert torch.equal(qat[0](X), prepared(X))
    module = convert(qat, march)
    fast = module[0](X)
    assert torch.equal(fast, module[0].run({"_input_0": X}, "reference")["_output_0"])
    # the CPU operators compute in float32, where ONNX Runtime may differ in the last bits
    assert torch.allclose(run_in_onnxruntime(module, X), fast, rtol=1e-6, atol=1e-6)
    # one step of every quantized operator on the way, as elsewhere
    step = max(float(q.scale.max()) for q in _activations(prepared))
    assert (fast - qat[0](X)).abs().max() <= 2 * step

    on_cpu = {i["loc"]: i["choice_reason"] for i in advice_items(module) if _counts(i)}
    assert on_cpu == reasons(prepared)
    assert {note["op"]: note["message"] for note in module.report} == reasons(prepared)


def _activations(prepared: PreparedModel) -> list[Any]:
    found = [op.activation_post_process for _, op in prepared.operators()]
    return [quantizer for quantizer in found if quantizer is not None]


def _counts(item: dict[str, Any]) -> bool:
    return item["backend"] == "external_cpu" and "border" not in item["choice_reason"]


def test_stubs_around_a_cpu_operator_have_the_documented_names() -> None:
    prepared = calibrated(Documented(), "nash-e", hybrid=True, hybrid_dict=CHOICE)
    names = [op.name for _, op in prepared.operators()]
    at = names.index("conv3")
    assert names[at - 1 : at + 2] == [
        "conv3_input_dequant",
        "conv3",
        "conv3_activation_post_process",
    ]
    conv3 = prepared.get_submodule("conv3")
    assert conv3.weight_fake_quant is None
    assert conv3.activation_post_process is None
    own = prepared.get_submodule("conv3_activation_post_process")
    assert bool(own.activation_post_process.observed)


def test_the_cpu_operator_is_torchs_own_on_real_values() -> None:
    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ELU()

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.act(-x) + 0.0)

    prepared = calibrated(Middle(), "nash-e", hybrid=True, hybrid_dict={"module_name": ["act"]})
    scales = {op.name: op.activation_post_process for _, op in prepared.operators()}

    def on_grid(x: Tensor, name: str) -> Tensor:
        scale = scales[name].scale
        return (torch.floor(x / scale + 0.5)).clamp(-128, 127) * scale

    values = F.elu(-on_grid(X, "_input_0_quant"))
    values = on_grid(values, "act_activation_post_process")
    added = on_grid(values, "_generated_add_0")
    assert torch.equal(convert(export(prepared, X), "nash-e")[0](X), torch.relu(added))


def test_without_hybrid_every_operator_the_march_lacks_is_an_error() -> None:
    with marches.march("bernoulli2"), pytest.raises(MarchError) as caught:
        prepare(Documented().eval(), X)
    text = str(caught.value)
    for name in ("prelu", "_generated_selu_0", "conv1.prelu", "_generated_selu_2"):
        assert f"{name} (" in text
    assert text.endswith("or keep their modules float with module.qconfig = None or hybrid=True.")


@pytest.mark.parametrize("behind_stub", [False, True])
@pytest.mark.parametrize(
    ("function", "spelling"),
    [
        (lambda x: torch.fft.fft(x).abs(), "torch.fft.fft"),
        (lambda x: torch.median(x, 1)[0], "torch.median"),
        (lambda x: x.prod(1), "torch.Tensor.prod"),
        (lambda x: torch.cdist(x, x), "torch.functional.cdist"),
        (lambda x: F.cosine_similarity(x, x.flip(1)), "torch.nn.functional.cosine_similarity"),
    ],
)
def test_a_function_outside_the_registry_is_refused_by_name_and_line(
    function: Any, spelling: str, behind_stub: bool
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant, self.conv = QuantStub(), DeQuantStub(), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Any:
            x = self.conv(self.quant(x))
            return function(self.dequant(x)) if behind_stub else self.dequant(function(x))

    prepared = calibrated(Net(), "nash-e", hybrid=True)
    assert any(item.op == spelling for item in prepared.float_ops) or behind_stub
    name = spelling.rpartition(".")[2]
    line = (
        rf"_generated_{name}_0 \({spelling}\) \(test_hybrid.py:\d+\): no operator of the registry "
        rf"fits {spelling}: .*\. hybrid=True and stubs keep it float, but a module holds operators "
        r"of the registry only\. Replace it, or move it out of the model"
    )
    with pytest.raises(ExportError, match=line):
        export(prepared, X)


def test_a_composed_operator_goes_to_the_cpu_as_a_whole() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(dim=1), nn.Conv2d(4, 2, 3))
    with marches.march("bernoulli2"), pytest.raises(MarchError, match=r"run: 1 \(softmax\): "):
        prepare(model.eval(), X)
    prepared = calibrated(model, "bernoulli2", hybrid=True)
    assert reasons(prepared) == {"1": "bernoulli2 has no softmax"}
    module = convert(export(prepared, X), "bernoulli2")
    assert [n.op_type for n in module.model.graph if n.op_type == "Softmax"] == ["Softmax"]


def test_a_prefix_moves_everything_in_a_module() -> None:
    prepared = calibrated(
        Documented(), "nash-e", hybrid=True, hybrid_dict={"module_name": ["conv1"]}
    )
    assert set(reasons(prepared)) == {"conv1.conv", "conv1.prelu", "_generated_selu_1"}
    assert set(reasons(prepared).values()) == {"hybrid_dict names conv1"}


def test_hybrid_trains_and_keeps_its_state() -> None:
    prepared = calibrated(Documented(), "nash-e", hybrid=True, hybrid_dict=CHOICE)
    set_fake_quantize(prepared.train(), FakeQuantState.QAT)
    prepared(X).square().sum().backward()
    conv3 = prepared.get_submodule("conv3")
    assert conv3.weight.grad is not None
    assert bool(conv3.weight.grad.abs().sum() > 0)
    other = calibrated(Documented(), "nash-e", hybrid=True, hybrid_dict=CHOICE)
    other.load_state_dict(prepared.state_dict())
    set_fake_quantize(prepared.eval(), FakeQuantState.VALIDATION)
    assert torch.equal(other(X), prepared(X))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hybrid_dict": CHOICE}, "hybrid_dict needs hybrid=True"),
        ({"hybrid": 1}, "hybrid must be True or False but got 1"),
        ({"hybrid": True, "hybrid_dict": {"names": []}}, "'module_name' and 'module_type'"),
        ({"hybrid": True, "hybrid_dict": {"module_name": "conv3"}}, "must be a list"),
        ({"hybrid": True, "hybrid_dict": {"module_type": ["Conv2d"]}}, "holds classes"),
        ({"hybrid": True, "hybrid_dict": {"module_name": ["conv33"]}}, "close: conv3"),
        ({"hybrid": True, "hybrid_dict": {"module_type": [nn.LSTM]}}, "module_type'] has LSTM"),
    ],
)
def test_wrong_choices_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(PrepareError) as caught:
        prepare(Documented().eval(), X, **options)
    assert text in str(caught.value)
