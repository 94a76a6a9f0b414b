"""assert_latency_below: the static estimate of converted modules and programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from qtune.bpu import compiler
from qtune.bpu.estimate import estimate
from qtune.errors import ArgumentError
from qtune.testing import AssertionResult, Stages, assert_latency_below


def failure(*args: Any, **kwargs: Any) -> AssertionResult:
    with pytest.raises(AssertionError) as caught:
        assert_latency_below(*args, **kwargs)
    return caught.value.qtune_result


def test_a_module_and_its_program_have_the_compiler_s_estimate(stages: Stages) -> None:
    wanted = estimate(stages.quantized_bc.model, "nash-e").latency_us
    assert wanted > 0
    for model in (stages.quantized_bc, stages.hbm):
        result = assert_latency_below(model, max_us=wanted)
        assert result.metrics == {"latency_us": wanted}
        assert result.limits == {"latency_us": wanted}
        assert failure(model, max_us=math.nextafter(wanted, 0)).metrics == {"latency_us": wanted}


def test_the_message_lists_the_longest_operators_with_their_share(stages: Stages) -> None:
    cost = estimate(stages.quantized_bc.model, "nash-e")
    lines = failure(stages.quantized_bc, max_us=0.01).message().splitlines()
    assert lines[0] == (
        f"latency_below: got {cost.latency_us:.4g} us (static estimate), limit <= 0.01 us"
    )
    head = next(
        i for i, line in enumerate(lines) if line.startswith("a static estimate for nash-e")
    )
    assert lines[head].endswith(f"the longest of {len(cost.operators)} operators:")
    longest = sorted(cost.operators, key=lambda item: -item.latency_us)[:5]
    for line, item in zip(lines[head + 1 : head + 6], longest, strict=True):
        assert line.startswith(f"  {item.op}")
        assert line.endswith(
            f": {item.latency_us:.4g} us, {item.share:.1%}, {item.type}, bound by {item.bound}"
        )
    assert not lines[head + 6].startswith("  ")


def test_the_line_of_the_model_s_code_is_named(stages: Stages) -> None:
    text = failure(stages.quantized_bc, max_us=0.01).message()
    assert "(nets.py:" in text


def test_the_program_of_stages_has_its_name_and_file(stages: Stages) -> None:
    result = assert_latency_below(stages.hbm, max_us=1000)
    assert result.model == "net"
    assert result.artefact == str(stages.hbm.path)
    assert result.provenance["march"] == "nash-e"


def test_every_function_of_a_program_has_to_be_below(stages: Stages, tmp_path: Path) -> None:
    one = compiler.compile(stages.quantized_bc, tmp_path / "one.hbo", "nash-e")
    one.functions[0].staged_name = "one"
    one.save_by_staged_info(tmp_path / "first.hbo")
    both = compiler.link([tmp_path / "one.hbo", tmp_path / "first.hbo"], tmp_path / "both.hbm")
    result = assert_latency_below(both, max_us=1000)
    assert result.model == "both"
    assert result.artefact == str(tmp_path / "both.hbm")
    assert failure(both, max_us=0.01).where == both.functions[0].name


def test_an_estimate_that_is_nan_is_below_nothing(stages: Stages, tmp_path: Path) -> None:
    program = compiler.compile(stages.quantized_bc, tmp_path / "odd.hbm", "nash-e")
    program.functions[0].estimate["latency_us"] = math.nan
    assert failure(program, max_us=math.inf).headline.startswith("latency_below: got nan us")


def test_the_name_replaces_the_model_s(stages: Stages) -> None:
    assert assert_latency_below(stages.hbm, max_us=1e6, name="mine").model == "mine"


@pytest.mark.parametrize(
    ("stage", "max_us", "text"),
    [
        ("qat_bc", 1, "of the stage 'qat'; the estimate is made of integer operators"),
        ("float", 1, "expected a converted module or a compiled program, such as"),
        ("hbm", math.nan, "max_us must be a number but got nan"),
        ("hbm", "1", "max_us must be a number but got '1'"),
        ("hbm", 0, "max_us can't be met: a time is above 0 us but got 0"),
    ],
)
def test_wrong_arguments_are_named(stages: Stages, stage: str, max_us: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        assert_latency_below(getattr(stages, stage), max_us=max_us)
    assert str(caught.value).startswith("assert_latency_below: ")
    assert text in str(caught.value)
