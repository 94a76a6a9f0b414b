"""``HbirModelProfiler``: the same for HBIR modules, qat and quantized."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.compiler import Hbm, compile
from qtune.capture.inputs import as_inputs
from qtune.errors import AnalysisError, RunError
from qtune.hbir.module import HbirModule
from qtune.profiler import HbirModelProfiler, read_profile
from qtune.profiler.observe import observe
from qtune.quantization import hbdk4
from tests.analysis.nets import Block, calibrated
from tests.profiler.profiled import profiled

X = torch.rand(2, 3, 8, 8)


@pytest.fixture
def stages() -> tuple[nn.Module, HbirModule, HbirModule]:
    model = calibrated(Block(), X)
    qat = hbdk4.export(model, X)
    return model, qat, hbdk4.convert(qat, "nash-e")


def test_the_operators_and_numbers_are_those_of_the_torch_model(
    stages: tuple[nn.Module, HbirModule, HbirModule], tmp_path: Path
) -> None:
    model, qat, _ = stages
    wanted = profiled(hbdk4.pre_export(model), tmp_path / "torch", X)
    plain = qat[0](X)
    with HbirModelProfiler(qat, tmp_path / "hbir") as profiler:
        found = qat[0](X)
    assert torch.equal(found, plain)
    seen = profiler.get_info_manager()
    assert list(seen) == list(wanted)
    for name, operator in wanted.items():
        # the exported graph sums in another order: only the last bits differ
        torch.testing.assert_close(seen[name].output, operator.output, rtol=1e-5, atol=1e-6)
        assert (seen[name].dtype, seen[name].scale) == (operator.dtype, operator.scale)
        attrs = [t.attr for t in seen[name].info.tensors]
        assert attrs == [t.attr for t in operator.info.tensors], name
    table = str(seen.table(with_stack=True))
    assert "onnx.Conv" in table
    assert "nets.py:" in table


def test_a_quantized_module_is_seen_called_as_itself_too(
    stages: tuple[nn.Module, HbirModule, HbirModule], tmp_path: Path
) -> None:
    quantized = stages[2]
    with HbirModelProfiler(quantized, tmp_path) as profiler:
        first, second = quantized(X), quantized[0](X * 0.5)
    seen = profiler.get_info_manager
    assert torch.equal(seen["_output_0_dequant"].output, first)
    assert torch.equal(seen["_output_0_dequant@1"].output, second)
    stem = seen["stem.2"]
    assert (stem.dtype, stem.info.op_type, stem.info.op) == ("qint8", "qtune.QConv", "relu")
    assert torch.equal(stem.input, seen["_input_0_quant"].output)
    assert list(stem.parameters) == ["weight", "bias"]
    assert stem.parameters["weight"].dtype == torch.int8
    assert quantized[0]._watch is None


def test_several_results_of_an_operator_are_one_line_each(tmp_path: Path) -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.fc(x).chunk(2, 1)
            return a + b

    x = torch.rand(1, 4)
    qat = hbdk4.export(calibrated(Split(), x), x)
    with HbirModelProfiler(qat, tmp_path) as profiler:
        qat(x)
    rows = [r for r in profiler.get_info_manager.table().rows if "output-" in r.tensor.attr]
    assert [r.tensor.attr for r in rows] == ["output-0", "output-1"]
    assert len({r.index for r in rows}) == 1
    assert "_generated_chunk_0:1" in read_profile(tmp_path).records


def test_a_failing_run_leaves_nothing(
    stages: tuple[nn.Module, HbirModule, HbirModule], tmp_path: Path
) -> None:
    quantized = stages[2]
    with pytest.raises(RunError), HbirModelProfiler(quantized, tmp_path) as profiler:
        quantized[0](X[:, :2])
    assert quantized[0]._watch is None
    assert not list(tmp_path.glob("op_infos/*"))
    with pytest.raises(AnalysisError, match="no forward"):
        profiler.get_info_manager()


def test_a_program_a_function_and_a_torch_model_are_refused_by_name(
    stages: tuple[nn.Module, HbirModule, HbirModule], tmp_path: Path
) -> None:
    model, qat, quantized = stages
    compile(quantized, str(tmp_path / "m.hbm"), "nash-e")
    refused = {
        "an Hbm is a compiled program": Hbm(tmp_path / "m.hbm"),
        "pass the module, not its function": qat[0],
        "torch models have ModelProfiler": model,
    }
    for message, given in refused.items():
        with pytest.raises(AnalysisError, match=message):
            HbirModelProfiler(given, tmp_path)  # type: ignore[arg-type]


def test_types_are_those_of_what_is_computed(
    stages: tuple[nn.Module, HbirModule, HbirModule],
) -> None:
    """Not of the fake-quantize behind it, which nearly every operator has."""
    _, qat, quantized = stages
    types = [
        {name: record.op_type for name, record in observe(module, as_inputs(X)).records.items()}
        for module in (qat, quantized)
    ]
    assert types[0]["_input_0_quant"] == "qtune.FakeQuant"
    assert types[0]["stem.2"] == "onnx.Relu"
    assert types[0]["_generated_add_0"] == "onnx.Add"
    assert types[0]["_generated_sigmoid_0"] == "qtune.FakeLut8"
    assert types[1]["_input_0_quant"] == "qtune.Quantize"
    assert types[1]["stem.2"] == "qtune.QConv"
