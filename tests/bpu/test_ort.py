"""ONNX Runtime runs a module through the same calls as the module itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.errors import RunError
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.quantization import prepare
from qtune.quantization.calibrate import auto_calibrate
from qtune.quantization.hbdk4 import export


class Heads(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"sum": x + y, "parts": (torch.relu(x), None)}


X, Y = (torch.randn(2, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1))


@pytest.fixture(scope="module")
def module() -> HbirModule:
    with pytest.MonkeyPatch.context() as patch, march("nash-e"):
        patch.setenv("QTUNE_RUN_DIR", "")
        calib = auto_calibrate(prepare(Heads().eval(), (X, Y)), [(X, Y)])
        return compiler.convert(export(calib, (X, Y)))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X, Y), {}), (((X, Y),), {}), ((X,), {"y": Y}), ((X.numpy(), Y.numpy()), {})],
)
def test_calls_of_the_float_model_give_what_the_module_gives(
    module: HbirModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    result = run_in_onnxruntime(module, *args, **kwargs)
    expected = module[0](X, Y)
    assert torch.equal(result["sum"], expected["sum"])
    assert torch.equal(result["parts"][0], expected["parts"][0])
    assert result["parts"][1] is None


@pytest.mark.parametrize("given", [{"_input_0": X, "_input_1": Y}])
def test_a_dict_by_input_name_gives_arrays_by_output_name(
    module: HbirModule, given: dict[str, Tensor]
) -> None:
    result = run_in_onnxruntime(module, given)
    assert list(result) == ["_output_0", "_output_1"]
    assert all(isinstance(value, np.ndarray) for value in result.values())
    assert np.array_equal(result["_output_0"], module[0](X, Y)["sum"].numpy())


def test_what_does_not_fit_is_named(module: HbirModule) -> None:
    with pytest.raises(RunError, match="_input_1.*expected dtype float32"):
        run_in_onnxruntime(module, X, Y.double())
