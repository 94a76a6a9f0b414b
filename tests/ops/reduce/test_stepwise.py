"""Reductions of more elements than the march reduces at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qtune.dtype import qint8, qint16
from qtune.errors import MarchError
from qtune.march import march
from qtune.quantization import prepare
from tests.ops.whole import Calls, check, quiet

__all__ = ["quiet"]

G = torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x: x.mean((2, 3)), (2, 3, 256, 257)),
        (lambda x: x.mean((-1, -2), keepdim=True), (2, 3, 256, 257)),
        (lambda x: x.mean(), (2, 3, 128, 128)),
        (lambda x: x.sum((1, 2, 3)), (2, 3, 128, 192)),
        (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 256, 257)),
    ],
)
def test_they_go_dimension_by_dimension(
    call: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    x = torch.rand(shape, generator=G)
    # Half a step of int8 in the result, as in an average of few.
    result = check(Calls(call), x, bar=1 / 127)
    first, last = [op for _, op in result.calib.operators() if op.op in ("mean", "sum")]
    assert first.name.endswith("_0")
    assert first.activation_post_process is not None
    assert first.activation_post_process.dtype is qint16
    assert last.activation_post_process is not None
    assert last.activation_post_process.dtype is qint8


def test_marches_without_the_limit_keep_them_whole() -> None:
    x = torch.rand(1, 2, 256, 257)
    model: Any = Calls(lambda x: x.mean((2, 3))).eval()
    with march("bayes"):
        names = [op.name for _, op in prepare(model, (x,)).operators()]
    assert [name for name in names if "mean" in name] == ["_generated_mean_0"]


def test_one_dimension_that_is_too_long_is_refused() -> None:
    x = torch.rand(2, 65536)
    with march("nash-e"), pytest.raises(MarchError, match="at most 65535 elements"):
        prepare(Calls(lambda x: x.mean(1)).eval(), (x,))
