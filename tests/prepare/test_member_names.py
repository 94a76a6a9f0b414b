"""Layers, parameters and buffers named like attributes of the recorded or the prepared model."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.nn.prepared import PreparedModel
from qtune.quantization.hbdk4 import export
from tests.quantization.flow import calib, prep, run

OWN = sorted(
    {
        name
        for cls in PreparedModel.__mro__[: PreparedModel.__mro__.index(nn.Module)]
        for name in {*vars(cls), *vars(cls).get("__annotations__", ())}
        if not name.startswith("__") and not hasattr(nn.Module, name)
    }
)


class Named(nn.Module):
    """A member of one kind for each of the names, called one after the other."""

    def __init__(self, kind: str, names: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.members_kind, self.members = kind, names
        for name in names:
            setattr(self, name, nn.Linear(4, 4) if kind == "layer" else self._made(kind))

    def _made(self, kind: str) -> Any:
        if kind == "container":
            return nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        return nn.Parameter(torch.randn(4)) if kind == "parameter" else nn.Buffer(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.members:
            member = getattr(self, name)
            x = x + (member(x) if isinstance(member, nn.Module) else x * member)
        return x


def stages(kind: str, names: list[str]) -> tuple[PreparedModel, list[Tensor]]:
    """Prepare, calibrate, copy, save, load, export and convert; the results on one input."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    prepared = prep(Named(kind, names), x)
    calib(prepared, [x])
    prepared = copy.deepcopy(prepared)
    saved = io.BytesIO()
    torch.save(prepared, saved)
    saved.seek(0)
    prepared = torch.load(saved, weights_only=False)
    prepared.load_state_dict(prepared.state_dict(), assign=True)
    function = compiler.convert(export(prepared, (x,)), "nash-e")[0]
    integer = function.run({function.inputs[0].name: x})
    return prepared, [run(prepared, x), *integer.values()]


@pytest.mark.parametrize("kind", ["layer", "container", "parameter", "buffer"])
def test_members_may_be_named_like_attributes_of_the_prepared_model(kind: str) -> None:
    assert {"of", "operators", "graph", "march", "_programs", "interface"} <= set(OWN)
    prepared, results = stages(kind, OWN)
    neutral, rights = stages(kind, [f"m_{name}" for name in OWN])
    for result, right in zip(results, rights, strict=True):
        assert torch.equal(result, right)
    keys = [key for key in prepared.state_dict() if key.partition(".")[0] in OWN]
    expected = [key for key in neutral.state_dict() if key.startswith("m_")]
    assert [f"m_{key}" for key in keys] == expected
    assert prepared.march == "nash-e"
    assert prepared.resolution is not None
    assert prepared.graph is prepared._graph


def test_get_submodule_and_set_submodule_mean_the_member() -> None:
    prepared, _ = stages("layer", ["of"])
    layer = prepared.get_submodule("of")
    assert isinstance(layer, nn.Linear) or hasattr(layer, "weight")
    other = nn.Identity()
    prepared.set_submodule("of", other)
    assert prepared.get_submodule("of") is other
    assert callable(PreparedModel.of)


def test_get_parameter_and_get_buffer_mean_the_member() -> None:
    parameters, _ = stages("parameter", ["march"])
    assert parameters.get_parameter("march").shape == (4,)
    buffers, _ = stages("buffer", ["march"])
    assert buffers.get_buffer("march").shape == (4,)
