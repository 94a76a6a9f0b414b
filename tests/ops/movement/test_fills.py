"""Movement that puts a number beside its input's values: int16 tables behind it cover that too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qtune.dtype import qint16
from qtune.qconfig.qconfig import get_qconfig
from qtune.qconfig.setter import QconfigSetter
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from tests.ops.steps import steps_apart
from tests.ops.whole import check, quiet, whole

__all__ = ["quiet"]

INT16 = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint16})])
X = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)) + 1  # 0 is not in its range

FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "tril": torch.tril,
    "triu": lambda x: torch.triu(x, 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pad_value": lambda x: F.pad(x, (1, 1), value=0.25),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "moved": lambda x: torch.tril(x).transpose(1, 2).reshape(2, -1),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_a_table_behind_it_gives_the_function_of_the_filled_number(
    fill: Callable[[Tensor], Tensor],
) -> None:
    result = check(lambda x: torch.tanh(fill(x)), X, bar=1e-3, setter=INT16)
    # A table of few segments is one step off at most, and its function was rounded once.
    assert steps_apart(result) <= 2


def test_mirrored_and_repeated_borders_leave_the_range_as_it_is() -> None:
    def reciprocal(x: Tensor) -> Tensor:
        return torch.reciprocal(F.pad(x, (1, 1, 1, 1), mode="reflect"))  # none at 0

    check(reciprocal, X, bar=1e-3, setter=INT16)


def test_a_pad_value_outside_of_the_grid_is_reported() -> None:
    result = whole(lambda x: F.pad(x, (1, 1), value=5.0), X)
    (note,) = [item for item in result.quantized.report if item["kind"] == "pad_saturated"]
    assert note["op"] == "_generated_pad_0"
    assert "the pad value 5 lies outside the range of its input's grid" in note["message"]
    inside = whole(lambda x: F.pad(x, (1, 1), value=1.5), X)
    assert not inside.quantized.report


@pytest.mark.parametrize(("bounds", "bound"), [((5.0, 9.0), 5), ((None, -7.5), -7.5)])
def test_a_clamp_to_numbers_outside_of_the_grid_is_reported(bounds: Any, bound: float) -> None:
    result = whole(lambda x: x.clamp(*bounds), X)
    (note,) = result.quantized.report
    assert (note["op"], note["kind"]) == ("_generated_clamp_0.clamp", "clamp_saturated")
    assert f"the bound {bound} lies outside the range of its input's grid" in note["message"]
    assert not whole(lambda x: x.clamp(-1.5, 9.0), X).quantized.report
