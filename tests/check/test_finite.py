"""NaN and infinite values in the example inputs of prepare."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.check.finite import non_finite_inputs
from qtune.quantization import prepare

X = torch.ones(2, 3)


class Masked(nn.Module):
    """A linear layer on the first input, and a mask that may be minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        result: Tensor = self.fc(x)
        return result if mask is None else result + mask


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_prepare_warns_once_and_names_the_inputs(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    odd = X.clone()
    odd[0, 0] = bad
    with caplog.at_level(logging.WARNING):
        prepare(Masked().eval(), [Inputs(odd), Inputs(odd, mask=odd)])
    (text,) = [r.getMessage() for r in caplog.records if "infinite" in r.getMessage()]
    assert text.startswith("prepare: example inputs with NaN or infinite values: x, mask.")


def test_good_examples_and_masks_are_not_mentioned() -> None:
    mask = torch.full((2, 3), float("-inf"))
    examples = [Inputs(X), Inputs(X, mask=mask), Inputs(torch.ones(2, 3, dtype=torch.int32))]
    assert non_finite_inputs(examples, Masked()) == []
