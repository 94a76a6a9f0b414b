"""One prepared model for several paths: tasks, optional inputs, sizes, training mode."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import Inputs
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.capture.structure import flatten
from qtune.check.qat_model import check_qat_model
from qtune.errors import GuardError, NotCalibratedError
from qtune.hbir.builder import META_OP
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import FakeQuantState, hbdk4, prepare, set_fake_quantize


class Head(nn.Module):
    """conv, norm, residual, activation, conv"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(self.conv(x)) + x))


class MultiTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.heads = nn.ModuleDict({"seg": Head(4), "det": Head(6)})

    def forward(
        self, x: Tensor, task: tuple[str, ...] = ("seg",), mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        x = self.stem(x)
        if mask is not None:
            x = x * mask
        return {name: self.heads[name](x) for name in task}


def model() -> MultiTask:
    torch.manual_seed(0)
    made = MultiTask().eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return made


def image(seed: int = 1, size: int = 8) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))


def mask() -> Tensor:
    return torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(7))


SEG, DET = Inputs(image()), Inputs(image(), ("det",))
BOTH, MASKED = Inputs(image(), ("det", "seg")), Inputs(image(), mask=mask())


def run(any_model: Any, inputs: Inputs) -> Any:
    with torch.no_grad():
        return any_model(*inputs.args, **inputs.kwargs)


def calibrated(*examples: Inputs) -> PreparedModel:
    prepared = prepare(model(), list(examples)).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    for example in examples:
        run(prepared, example)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    ours, theirs = flatten(actual), flatten(expected)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= tolerance * float(b.abs().max())


def test_float_state_equals_the_float_model_on_every_path() -> None:
    float_model = model()
    prepared = prepare(float_model, [SEG, DET, BOTH, MASKED]).eval()
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    for inputs in (SEG, DET, BOTH, MASKED, Inputs(image(3, 12), ("det", "seg"))):
        # batch norms are folded: 1e-5 relative, numerics.md section 5
        assert_close(run(prepared, inputs), run(float_model, inputs), 1e-5)


def test_shared_operators_are_fused_and_have_one_scale() -> None:
    prepared = prepare(model(), [SEG, DET, BOTH, MASKED])
    names = [op.name for _, op in prepared.operators()]
    assert names.count("stem.0") == 1
    assert all(count == 1 for count in prepared.calls().values())
    assert prepared.unfused == ()
    groups = {n.meta["name"]: n.meta.get("group") for n, _ in prepared.operators()}
    assert groups["stem.0"] == "stem.2"
    assert groups["heads.seg.conv"] == "_generated_relu_0"  # also behind the mask
    assert groups["heads.det.conv"] == "_generated_relu_1"
    quantized = [name for name, kind, _ in iter_stubs(prepared) if kind == "output"]
    assert len(quantized) == len(set(quantized))


def test_both_tasks_calibrated_validation_is_near_float() -> None:
    float_model, prepared = model(), calibrated(SEG, DET)
    for inputs in (SEG, DET):
        # 8 bits per result: about 1% of the largest one
        assert_close(run(prepared, inputs), run(float_model, inputs), 0.03)
    scale = prepared.get_submodule("stem.2").activation_post_process.scale
    assert float(scale) > 0


def test_one_backbone_sees_the_data_of_all_tasks() -> None:
    prepared = prepare(model(), [SEG, DET]).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    quantizer = prepared.get_submodule("_input_0_quant").activation_post_process
    run(prepared, Inputs(image() * 0 + 1.0))
    first = float(quantizer.scale)
    run(prepared, Inputs(image() * 0 + 5.0, ("det",)))
    # moving average with averaging_constant 0.01: absmax 1 + 0.01 * (5 - 1)
    assert float(quantizer.scale) == pytest.approx(first * 1.04, rel=1e-6)


@pytest.mark.parametrize("inputs", [SEG, DET, BOTH, MASKED], ids=["seg", "det", "both", "masked"])
def test_export_takes_the_branch_of_its_inputs(inputs: Inputs) -> None:
    prepared = calibrated(SEG, DET, BOTH, MASKED)
    expected = run(prepared, inputs)
    module = hbdk4.export(prepared, inputs)
    actual = module[0](*inputs.args, **inputs.kwargs)
    assert list(actual) == list(expected)
    assert all(torch.equal(actual[k], expected[k]) for k in expected)
    tasks = set(inputs.args[1] if len(inputs.args) > 1 else ("seg",))
    names = {node.metadata_props.get(META_OP, "") for node in module.model.graph}
    assert {name.split(".")[1] for name in names if name.startswith("heads")} == tasks
    quantized = hbdk4.convert(module)
    integer = quantized[0](*inputs.args, **inputs.kwargs)
    # one int8 step is 1/127.5 of the largest value
    assert_close(integer, expected, 0.01)


def test_only_the_exported_task_has_to_be_calibrated() -> None:
    prepared = prepare(model(), [SEG, DET]).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    run(prepared, SEG)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    assert torch.equal(hbdk4.export(prepared, SEG)[0](image())["seg"], run(prepared, SEG)["seg"])
    with pytest.raises(NotCalibratedError, match=r"heads\.det"):
        hbdk4.export(prepared, DET)
    with pytest.raises(NotCalibratedError, match=r"heads\.det|relu_1"):
        run(prepared, DET)


def test_a_path_without_example_is_refused_with_each_broken_guard() -> None:
    prepared = calibrated(SEG, DET)
    with pytest.raises(GuardError) as caught:
        run(prepared, BOTH)
    text = str(caught.value)
    assert "none of the 2 recorded branches fits" in text
    assert "example 0:" in text
    assert "example 1:" in text
    assert "example_inputs=[" in text


def test_check_looks_at_the_branch_of_its_inputs_or_at_all() -> None:
    prepared = calibrated(SEG, DET)
    seg = check_qat_model(prepared, SEG)
    assert seg
    assert not any("det" in row.name for row in seg.outputs)
    assert not seg.unobserved
    both = check_qat_model(prepared, [SEG, DET])
    assert both
    assert {"heads.seg.out", "heads.det.out"} <= {row.name for row in both.outputs}
    assert set(both.call_counts.values()) == {1}


def test_states_and_copies_reach_every_branch() -> None:
    prepared = calibrated(SEG, DET)
    expected = {task: run(prepared, inputs) for task, inputs in (("seg", SEG), ("det", DET))}
    buffer = io.BytesIO()
    torch.save(prepared.state_dict(), buffer)
    buffer.seek(0)
    other = prepare(model(), [SEG, DET]).eval()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    set_fake_quantize(other, FakeQuantState.VALIDATION)
    for again in (other, copy.deepcopy(prepared)):
        assert torch.equal(run(again, SEG)["seg"], expected["seg"]["seg"])
        assert torch.equal(run(again, DET)["det"], expected["det"]["det"])


def test_analysis_of_one_task_compares_its_operators_only(tmp_path: Any) -> None:
    prepared = calibrated(SEG, DET)
    analysis = QuantAnalysis(model(), prepared, "fake_quant", out_dir=str(tmp_path))
    analysis.auto_find_bad_case([DET])
    analysis.run()
    found = analysis.compare_per_layer()
    rows = dict(zip(found.names, found.rows, strict=True))
    assert "heads.det.out" in rows
    assert not any("heads.seg" in name for name in rows)
    assert set(rows) >= {"_generated_add_1", "_generated_relu_1"}
    # 8 bits per result: a cosine above 0.999 against the float model's own values
    assert min(row["COSINE"] for row in rows.values()) > 0.999
    tables = analysis.sensitivity(use_sensitivity_v2=True)
    assert set(tables) == {"det"}
    assert not any("heads.seg" in row[0] for row in tables["det"][0].rows)


def test_training_step_runs_the_path_of_its_mode() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.drop = nn.Dropout(0.25)

        def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
            y = self.drop(F.relu(self.conv(x)))
            if self.training:
                return {"loss": F.l1_loss(y, target)}
            return y.mean((2, 3))

    target = torch.rand(2, 4, 6, 6)
    examples = [Inputs(image()), Inputs(image(), target).in_mode(training=True)]
    prepared = prepare(WithLoss().eval(), examples)
    set_fake_quantize(prepared.eval(), FakeQuantState.CALIBRATION)
    run(prepared, Inputs(image()))
    prepared.train()
    set_fake_quantize(prepared, FakeQuantState.QAT)
    loss = prepared(image(), target)["loss"]
    loss.backward()
    weight = prepared.get_submodule("conv").weight
    assert weight.grad is not None
    assert float(weight.grad.abs().sum()) > 0
    prepared.eval()
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    assert run(prepared, Inputs(image(5))).shape == (2, 4)
    assert hbdk4.export(prepared, Inputs(image()))[0](image()).shape == (2, 4)
