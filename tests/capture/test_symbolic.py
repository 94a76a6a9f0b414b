"""Tracing without example inputs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from qtune.capture import capture_symbolic
from qtune.errors import CaptureError

from .replay import called_modules
from .test_guards import Lambda, data
from .test_recorder import MyConv, SamePadConv, SmallNet, UNet, image


@pytest.mark.parametrize("make", [SmallNet, UNet])
def test_traced_model_equals_the_model_on_any_size(make: type[nn.Module]) -> None:
    model = make().eval()
    traced = capture_symbolic(model)
    for shape in ((1, 3, 20, 20), (3, 3, 33, 26)):
        assert torch.equal(traced(image(*shape)), model(image(*shape)))
    assert list(traced.state_dict()) == list(model.state_dict())
    again = pickle.loads(pickle.dumps(copy.deepcopy(traced)))
    assert torch.equal(again(image(1, 3, 20, 20)), model(image(1, 3, 20, 20)))


def test_leaf_rule_is_the_same_as_in_recording() -> None:
    traced = capture_symbolic(nn.Sequential(MyConv(3, 4), SamePadConv(4, 2, 3)))
    assert called_modules(traced) == ["0"]
    conv = next(n for n in traced.graph.nodes if n.target is torch.conv2d)
    assert conv.meta["scope"] == "1"
    assert conv.meta["source"].startswith("test_recorder.py:")


def test_structured_outputs_defaults_and_constants() -> None:
    class Structured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = data(3)

        def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, list[Tensor | None]]:
            return {"a": [x * scale, None], "b": [x + self.table]}

    model = Structured()
    traced = capture_symbolic(model)
    for out, expected in ((traced(data(2, 3)), model(data(2, 3))), (traced(data(2, 3), 3.0),) * 2):
        assert type(out) is dict
        assert torch.equal(out["a"][0], expected["a"][0])
        assert out["a"][1] is None
    assert not any(name.startswith("_tensor_constant") for name in vars(model))
    assert len(traced.report.constants) == 1


def test_control_flow_on_data_is_refused_with_the_way_out() -> None:
    line = r"torch.fx can't trace it \(TraceError at test_guards\.py:\d+: .*\.JIT_STRIP, which"
    with pytest.raises(CaptureError, match=line):
        capture_symbolic(Lambda(lambda x: x if x.sum() > 0 else -x))
