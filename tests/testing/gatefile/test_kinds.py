"""Kinds of checks: all assertions on models, with the arguments that their code has."""

from __future__ import annotations

import inspect

import pytest

import qtune.testing
from qtune.testing.gatefile.kinds import kinds
from qtune.testing.gatefile.signature import STAGES, Parameter


def test_every_assertion_that_looks_at_a_model_is_a_kind() -> None:
    names = {name for name in qtune.testing.__all__ if name.startswith("assert_")}
    assert set(kinds()) == {name.removeprefix("assert_") for name in names} - {"close"} | {
        "baseline"
    }


@pytest.mark.parametrize("name", kinds())
def test_the_signature_read_from_the_source_is_that_of_the_function(name: str) -> None:
    kind = kinds()[name]
    module = __import__(kind.module, fromlist=[kind.function])
    real = inspect.signature(getattr(module, kind.function)).parameters
    assert [p.name for p in kind.signature.parameters] == list(real)
    assert [p.required for p in kind.signature.parameters] == [
        p.default is inspect.Parameter.empty for p in real.values()
    ]


@pytest.mark.parametrize("name", kinds())
def test_a_file_can_give_whatever_a_kind_requires(name: str) -> None:
    kind = kinds()[name]
    subjects = {p.name for p in kind.subjects}
    required = {p.name for p in kind.signature.parameters if p.required}
    assert required - subjects - {"stored"} <= set(kind.arguments)
    assert len(kind.default_stages({})) == len(kind.stage_keys) == len(subjects)
    for subject, stage in zip(kind.subjects, kind.default_stages({}), strict=True):
        assert stage in subject.stages


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        ("float | None", [1, 0.5], [True, "1", [1]]),
        ("int", [1], [0.5, False]),
        ("bool", [True], [1, "true"]),
        ("str | MetricInfo", ["ATOL"], [1]),
        ("Literal['a', 'b']", ["a"], ["c", 1]),
        ("Sequence[str]", [[], ["a"]], ["a", [1]]),
        ("str | Iterable[str]", ["a", ["a"]], [1, [1]]),
        ("Mapping[str, float]", [{"a": 1}], [{"a": "b"}, 1]),
        ("Mapping[str, tuple[float, float]]", [{"a": [0, 1]}], [{"a": 1}]),
        ("float | Mapping[str, float]", [1, {"a": 1.0}], ["a", {"a": []}]),
        ("Callable[[Any], float] | None", ["my_eval:top1"], ["top1", 1]),
        ("Any", [1, "a", []], []),
        ("QConfig", [], [1, "a"]),
    ],
)
def test_values_are_checked_against_annotations(
    annotation: str, good: list[object], bad: list[object]
) -> None:
    parameter = Parameter("x", annotation)
    assert [parameter.accepts(value) for value in good] == [True] * len(good)
    assert [parameter.accepts(value) for value in bad] == [False] * len(bad)
    assert bool(parameter.expected) == bool(good)


def test_stages_follow_from_the_annotation() -> None:
    assert Parameter("x", "HbirModule").stages == ("qat_bc", "quantized_bc")
    assert Parameter("x", "Model").stages == STAGES[:-1]
    assert Parameter("x", "nn.Module | HbirModule | Program | float").stages == STAGES
    assert Parameter("x", "Tensor").stages == ()
