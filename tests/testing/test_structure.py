"""assert_no_shared_ops and assert_no_unfused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qtune.errors import ArgumentError
from qtune.testing import Stages, assert_no_shared_ops, assert_no_unfused

from . import nets

X = torch.zeros(2, 3, 8, 8)


@pytest.mark.parametrize("inputs", [None, X])
def test_clean_model_passes(stages: Stages, inputs: Any) -> None:
    result = assert_no_shared_ops(stages.calib, inputs=inputs)
    assert result.metrics == {"shared_ops": 0, "unused_ops": 0}
    assert {layer.name for layer in result.layers} >= {"stem", "pool", "head"}
    assert {layer.dtype for layer in result.layers} == {"qint8", "torch.float32", ""}
    assert assert_no_unfused(stages.calib, inputs=inputs).metrics == {"unfused_patterns": 0}


@pytest.mark.parametrize("inputs", [None, X])
def test_shared_operator_is_named(build: Any, inputs: Any) -> None:
    stages = build(nets.Shared)
    with pytest.raises(AssertionError) as caught:
        assert_no_shared_ops(stages.calib, inputs=inputs)
    message = str(caught.value)
    assert message.splitlines()[0] == "no_shared_ops: body: got 2 calls, limit 1 call"
    assert "Give each call a module of its own" in message


def test_unfused_pattern_is_named_with_its_reason(build: Any) -> None:
    stages = build(nets.Shared)
    with pytest.raises(AssertionError) as caught:
        assert_no_unfused(stages.calib)
    first, _, rest = str(caught.value).partition("\n")
    assert first.startswith("no_unfused: body + ")
    assert first.endswith(" unfused, limit 0 unfused")
    assert "body + " in rest


@pytest.mark.parametrize("check", [assert_no_shared_ops, assert_no_unfused])
def test_unprepared_model_is_refused(stages: Stages, check: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a model made by prepare"):
        check(stages.float)
    with pytest.raises(ArgumentError, match=r"got qtune\.hbir\.module\.HbirModule"):
        check(stages.quantized_bc)


def test_shared_operator_names_all_lines_that_call_it(build: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_no_shared_ops(build(nets.Shared).calib)
    (bad,) = [layer for layer in caught.value.qtune_result.layers if not layer.ok]
    first, second = bad.source.split(", ")
    assert first != second
