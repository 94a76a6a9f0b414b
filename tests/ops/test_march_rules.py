"""Marches x operators: what toolchain_facts 1.2, 7.1 and 7.2 say, read off the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qtune.dtype import float16, qint8, qint16
from qtune.march import March
from qtune.ops import registry
from qtune.ops.spec import MarchRule, OpSpec
from qtune.qconfig.march_check import dtype_refusal, fit_input, fit_output, refusal
from qtune.qconfig.plan import OpView

MARCHES = list(March)
BERNOULLI, BAYES, NASH = March.BERNOULLI2, March.BAYES_E, March.NASH_E
FLOAT16 = (March.NASH_P, March.NASH_H, March.NASH_B, March.NASH_B_LITE, March.NASH_B_PLUS)
MAP = (2, 64, 8, 8)


def rule_of(op: str, march: March) -> MarchRule | None:
    rules = [rule for rule in registry.spec(op).march if rule.covers(march)]
    assert len(rules) <= 1
    return rules[0] if rules else None


def view_of(
    op: str,
    attrs: Mapping[str, Any],
    shapes: tuple[tuple[int, ...] | None, ...],
    output: tuple[int, ...],
) -> OpView:
    spec = registry.spec(op)
    return OpView.from_spec(spec, name=op, attrs=attrs, input_shapes=shapes, output_shape=output)


@pytest.mark.parametrize("march", MARCHES, ids=str)
def test_every_dtype_that_a_rule_gives_exists_on_the_march(march: March) -> None:
    known = {"qint8", "qint32", "float32"}
    known |= {"qint16"} if march.limits.int16_activations else set()
    known |= {"float16"} if march.limits.float16 else set()
    for name in registry.specs():
        rule = rule_of(name, march)
        if rule is not None:
            roles = ("", *rule.operands)
            taken = {dtype for role in roles for dtype in rule.takes(march, role)}
            assert taken | set(rule.gives(march)) <= known, name


def _possible(names: tuple[str, ...]) -> set[str]:
    return set(names) & {"qint8", "qint16", "float16"}


@pytest.mark.parametrize("march", MARCHES, ids=str)
@pytest.mark.parametrize("asked", [qint8, qint16, float16], ids=repr)
def test_what_is_asked_becomes_what_the_march_takes(march: March, asked: Any) -> None:
    for name, spec in registry.specs().items():
        rule = rule_of(name, march)
        if rule is None:
            continue
        view = OpView.from_spec(spec, name=name)
        for index in range(len(spec.roles)):
            allowed = _possible(rule.takes(march, view.role(index)))
            fitted = fit_input(view, asked, march, index)
            assert not allowed or fitted.dtype.name in allowed, name
            assert bool(fitted.reason) == (fitted.dtype != asked), name
        gives = _possible(rule.gives(march))
        assert not gives or fit_output([view], asked, march).dtype.name in gives, name


def test_float16_exists_on_nash_p_h_and_b_only() -> None:
    assert tuple(march for march in MARCHES if march.limits.float16) == FLOAT16
    for march in FLOAT16:
        for op in ("add", "mul", "sigmoid", "mean", "relu", "reshape", "abs"):
            rule = rule_of(op, march)
            assert rule is not None
            assert "float16" in rule.takes(march), op
            assert "float16" in rule.gives(march), op
        for op in ("conv2d", "linear", "matmul"):
            rule = rule_of(op, march)
            assert rule is not None
            assert "float16" not in rule.takes(march), "a GEMM takes integers"
            assert "float16" in rule.gives(march), op
        for op in ("interpolate", "flip", "index_select"):
            rule = rule_of(op, march)
            assert rule is not None
            assert "float16" not in rule.takes(march), "it moves int8 data"


@pytest.mark.parametrize(
    ("op", "bernoulli", "bayes", "nash"),
    [
        ("conv2d", "8>8,32", "8,16>8,16,32", "8,16>8,16,32"),
        ("conv_transpose2d", "8>8,32", "8>8,32", "8,16>8,16,32"),
        ("linear", "", "8>8,16,32", "8,16>8,16,32"),
        ("matmul", "8>8,32", "8>8,16,32", "8,16>8,16,32"),
        ("add", "8>8", "8,16>8,16", "8,16>8,16"),
        ("sub", "8>8", "8,16>8,16", "8,16>8,16"),
        ("cat", "8>8", "8,16>8,16", "8,16>8,16"),
        ("relu", "8>8", "8,16>8,16", "8,16>8,16"),
        ("sigmoid", "8>8", "8,16>8,16", "8,16>8,16"),
        ("erf", "", "8,16>8,16", "8,16>8,16"),
        ("interpolate", "8>8", "8>8", "8>8"),
        ("index_select", "", "8,16>8,16", "8>8"),
        ("embedding", "", "8,16>8,16", "8>8"),
        ("flip", "", "8,16>8,16", "8>8"),
        ("pad", "", "8,16>8,16", "8,16>8,16"),
        ("gt", "", "8,16>8,16", "8,16>8,16"),
        ("avg_pool2d", "8>8", "8,16>8,16", "8,16>8,16"),
        ("batch_norm", "8>8", "8,16>8,16", "8,16>8,16"),
    ],
)
def test_dtypes_are_those_of_the_tables(op: str, bernoulli: str, bayes: str, nash: str) -> None:
    for march, text in ((BERNOULLI, bernoulli), (BAYES, bayes), (NASH, nash)):
        rule = rule_of(op, march)
        if not text:
            assert rule is None, march
            continue
        assert rule is not None
        taken, given = (tuple(f"qint{n}" for n in side.split(",")) for side in text.split(">"))
        assert (rule.takes(march), rule.gives(march)) == (taken, given), march


CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
TRANSPOSED = {**CONV, "padding": (0, 0), "output_padding": (0, 0)}


@pytest.mark.parametrize(
    ("march", "op", "attrs", "shapes", "reason"),
    [
        (NASH, "conv2d", CONV, (MAP, (8, 64, 31, 31), None), None),
        (NASH, "conv2d", CONV, (MAP, (8, 64, 32, 3), None), "kernel size is 32, at most 31"),
        (NASH, "conv2d", CONV, (MAP, (8, 8193, 3, 3), None), "8193, at most 8192"),
        (NASH, "conv2d", CONV, ((4097, 3, 8, 8), (8, 3, 3, 3), None), "batch size is 4097"),
        (NASH, "conv2d", {**CONV, "stride": (257, 1)}, (MAP, (8, 64, 3, 3), None), "stride is 257"),
        (NASH, "conv2d", {**CONV, "padding": (257, 1)}, (MAP, (8, 64, 3, 3), None), "padding"),
        (NASH, "conv2d", {**CONV, "dilation": (19, 1)}, (MAP, (8, 64, 3, 3), None), "at most 18"),
        (BAYES, "conv2d", {**CONV, "dilation": (17, 1)}, (MAP, (8, 64, 3, 3), None), "at most 16"),
        (BAYES, "conv2d", CONV, (MAP, (16385, 64, 1, 1), None), "16385, at most 16384"),
        (BERNOULLI, "conv2d", CONV, (MAP, (8, 64, 3, 3), None), None),
        (NASH, "conv_transpose2d", TRANSPOSED, (MAP, (64, 8, 2, 2), None), None),
        (
            NASH,
            "conv_transpose2d",
            {**TRANSPOSED, "stride": (2, 2)},
            (MAP, (64, 8, 2, 2), None),
            "must be smaller than the kernel (2, 2); pad the weight with zeros",
        ),
        (
            BAYES,
            "conv_transpose2d",
            {**TRANSPOSED, "stride": (2, 2)},
            (MAP, (64, 8, 2, 2), None),
            None,
        ),
        (
            BERNOULLI,
            "conv_transpose2d",
            {**TRANSPOSED, "stride": (5, 5)},
            (MAP, (64, 8, 6, 6), None),
            "stride is 5, at most 4",
        ),
        (NASH, "linear", {}, ((1, 8193), (8, 8193), None), "8193, at most 8192"),
        (BERNOULLI, "linear", {}, ((1, 8), (8, 8), None), "bernoulli2 has no linear"),
        (NASH, "matmul", {}, ((1, 8, 8193), (1, 8193, 8)), "8193, at most 8192"),
        (BERNOULLI, "reshape", {"shape": (2,)}, ((1, 2, 1, 1, 1),), "at most 4"),
        (BAYES, "reshape", {"shape": (2,)}, ((1, 2, 1, 1, 1),), None),
        (NASH, "pad", {"pad": (4097, 0)}, (MAP,), "at most 4096"),
    ],
)
def test_limits_are_those_of_the_tables(
    march: March, op: str, attrs: Any, shapes: Any, reason: str | None
) -> None:
    found = refusal(view_of(op, attrs, shapes, shapes[0]), march)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("stride", "groups", "dtype", "given"),
    [
        ((4, 4), 64, qint16, qint8),
        ((3, 4), 64, qint16, qint8),
        ((2, 2), 64, qint16, qint16),
        ((3, 3), 64, qint16, qint16),
        ((4, 4), 64, qint8, qint8),
        ((4, 4), 1, qint16, qint16),
    ],
)
def test_int16_depthwise_convolutions_have_an_odd_stride_or_2_on_nash(
    stride: tuple[int, int], groups: int, dtype: Any, given: Any
) -> None:
    weight = (64, 64 // groups, 3, 3)
    view = view_of("conv2d", {**CONV, "stride": stride, "groups": groups}, (MAP, weight), MAP)
    fitted = fit_input(view, dtype, NASH, 0)
    assert fitted.dtype == given
    assert ("odd stride or 2" in fitted.reason) == (given != dtype)
    assert fit_input(view, dtype, BAYES, 0).dtype == dtype, "the rule is nash's"


def test_more_than_8192_output_channels_are_for_the_last_layer() -> None:
    view = view_of("conv2d", CONV, (MAP, (9000, 64, 1, 1)), (2, 9000, 8, 8))
    for march in (BAYES, NASH):
        assert refusal(view, march) is None
        assert "last layer" in str(dtype_refusal(view, march, [qint8], qint8))
        assert dtype_refusal(view, march, [qint8], None) is None


def test_a_role_may_have_dtypes_of_its_own() -> None:
    rule = MarchRule(("nash",), ("qint8",), ("qint8",), operands={"grid": ("qint16",)})
    spec = OpSpec(
        name="sample",
        family="resize",
        rule=registry.spec("interpolate").rule,
        roles=("input", "grid"),
        targets=(),
        float_kernel=None,
        march=(rule,),
    )
    view = OpView.from_spec(spec, name="sample")
    assert [fit_input(view, qint8, NASH, i).dtype for i in (0, 1)] == [qint8, qint16]
    assert fit_input(view, qint8, NASH, 1).reason == "nash-e takes qint16 as input of sample"
    assert fit_input(view, float16, March.NASH_P, 1).dtype == qint16
