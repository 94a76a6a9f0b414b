"""Every torch spelling of an operator binds to the canonical call that computes the same."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.segment_module import SegmentLUT
from qtune.ops.registry import find_function, find_method, find_module, spec, specs
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, ModuleTarget, OpSpec, Target
from qtune.testing.fuzzing.operands import DOMAINS

from .rig import randn

FAMILIES = ("elementwise", "activation", "reduce")
X = randn(2, 3, 4, 5).abs() + 0.5
Y = randn(2, 3, 4, 5, seed=1).abs() + 0.5
MASK = randn(2, 3, 4, 5, seed=2) > 0

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "pow": (X, 2),
    "where": (MASK, X, Y),
    "masked_fill": (X, MASK, -1.5),
    "logical_and": (MASK, ~MASK),
    "logical_or": (MASK, ~MASK),
    "logical_not": (MASK,),
    "prelu": (X - 1, torch.tensor([0.1, 0.2, 0.3])),
    "clamp": (X, 0.6, 0.9),
    "clamp_scalar": (X, 0.6, 0.9),
    "logical_xor": (MASK, ~MASK),
    "any": (MASK, 1),
    "all": (MASK, (1, 2), True),
    "lerp": (X, Y, 0.3),
    "addcmul": (X, Y, X),
    "addcdiv": (X, Y, X),
    "remainder": (X, 0.75),
    "fmod": (X, 0.75),
    "floor_divide": (X, 0.25),
    "threshold": (X, 0.8, -0.5),
    "cumsum": (X, 1),
    "logsumexp": (X, 1),
    "topk": (X, 2, 1),
    "min": (X,),
    "softmin": (X, 1),
    "glu": (X, 2),
    "argmin": (X, 1),
    "softmax": (X, 1),
    "log_softmax": (X, -1),
    "mean": (X, (1, 2), True),
    "sum": (X, 1),
    "amax": (X, (2, 3)),
    "amin": (X, -1),
    "argmax": (X, 1),
    "max": (X,),
}
SPECIAL: dict[Any, tuple[Any, ...]] = {
    "where": (X, MASK, Y),
    "square": (X,),
    "square_": (X,),
    torch.square: (X,),
    **dict.fromkeys((torch.deg2rad, torch.deg2rad_, torch.rad2deg, torch.rad2deg_), (X,)),
    **dict.fromkeys(("deg2rad", "deg2rad_", "rad2deg", "rad2deg_"), (X,)),
    "__rpow__": (X, 2),
    F.hardtanh: (X, 0.6, 0.9),
    **dict.fromkeys(
        (torch.clamp_min, torch.clamp_max, torch.clamp_min_, torch.clamp_max_), (X, 0.6)
    ),
    **{f"clamp_{end}": (X, 0.6) for end in ("min", "max", "min_", "max_")},
}
MODULES: dict[type[nn.Module], nn.Module] = {
    nn.Softmin: nn.Softmin(1),
    nn.GLU: nn.GLU(2),
    SegmentLUT: SegmentLUT(torch.tanh),
    nn.Threshold: nn.Threshold(0.2, -0.5),
    nn.RReLU: nn.RReLU().eval(),
    nn.Softshrink: nn.Softshrink(0.3),
    nn.PReLU: nn.PReLU(3),
    nn.Hardtanh: nn.Hardtanh(0.6, 0.9),
    nn.Softmax: nn.Softmax(1),
    nn.LogSoftmax: nn.LogSoftmax(-1),
    nn.GELU: nn.GELU("tanh"),
    nn.ELU: nn.ELU(0.7),
    nn.CELU: nn.CELU(0.7),
    nn.LeakyReLU: nn.LeakyReLU(0.2),
    nn.Softplus: nn.Softplus(2.0, 1.5),
}


def own_targets() -> Iterator[tuple[OpSpec, Target]]:
    for entry in specs().values():
        if entry.family in FAMILIES:
            yield from ((entry, target) for target in entry.targets)


def arguments(entry: OpSpec, key: Any) -> tuple[Any, ...]:
    found = SPECIAL.get(key, ARGUMENTS.get(entry.name))
    if entry.name in DOMAINS:
        low, high = DOMAINS[entry.name]
        found = (X / X.max() * (high - low) * 0.9 + low,)
    found = found or ((X, Y) if len(entry.roles) == 2 else (X,))
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in found)


def run(entry: OpSpec, bound: Bound) -> Any:
    kernel = entry.float_kernel
    assert kernel is not None
    tensors = bound.tensors
    return kernel(*tensors[: _given(tensors)], **bound.attrs)


def _given(tensors: tuple[Any, ...]) -> int:
    """Operands up to the last one that is there."""
    return max(place for place, tensor in enumerate(tensors) if tensor is not None) + 1


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b)
        return
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("entry", "target"),
    [(e, t) for e, t in own_targets() if isinstance(t, FunctionTarget)],
    ids=lambda v: getattr(v, "name", None) or getattr(v.function, "__name__", "?"),
)
def test_function_binds_to_the_same_result(entry: OpSpec, target: FunctionTarget) -> None:
    bound = target.bind(*arguments(entry, target.function))
    assert len(bound.tensors) == len(entry.roles)
    assert_same(run(entry, bound), target.function(*arguments(entry, target.function)))
    assert find_function(target.function) == (entry, target)


@pytest.mark.parametrize(
    ("entry", "target"),
    [(e, t) for e, t in own_targets() if isinstance(t, MethodTarget)],
    ids=lambda v: v.name,
)
def test_method_binds_to_the_same_result(entry: OpSpec, target: MethodTarget) -> None:
    bound = target.bind(*arguments(entry, target.name))
    assert len(bound.tensors) == len(entry.roles)
    if hasattr(torch.Tensor, target.name):
        tensor, *others = arguments(entry, target.name)
        assert_same(run(entry, bound), getattr(tensor, target.name)(*others))
    assert find_method(target.name) == (entry, target)


@pytest.mark.parametrize(
    ("entry", "target"),
    [(e, t) for e, t in own_targets() if isinstance(t, ModuleTarget)],
    ids=lambda v: v.name if isinstance(v, OpSpec) else v.cls.__name__,
)
def test_module_binds_to_the_same_result(entry: OpSpec, target: ModuleTarget) -> None:
    module = MODULES.get(target.cls) or target.cls()
    bound = target.bind(module, X - 1)
    parameters = {role: getattr(module, name) for role, name in target.params.items()}
    tensors = tuple(
        parameters.get(role, tensor)
        for role, tensor in zip(entry.roles, bound.tensors, strict=True)
    )
    with torch.no_grad():
        assert_same(run(entry, Bound(tensors, bound.attrs)), module(X - 1))
    subclass = type("Own", (target.cls,), {})
    assert find_module(subclass) == (entry, target)


@pytest.mark.parametrize("function", [operator.add, operator.sub, operator.mul])
def test_a_number_stays_on_its_side_of_the_operator(function: Any) -> None:
    entry, target = find_function(function) or pytest.fail("no operator")
    bound = target.bind(2, X)
    assert bound.tensors[0] == 2
    assert_same(run(entry, bound), function(2, X))


def test_reflected_methods_swap_their_operands() -> None:
    for name, expected in (("__rsub__", 2 - X), ("__rtruediv__", 2 / X), ("__radd__", 2 + X)):
        entry, target = find_method(name) or pytest.fail(name)
        assert_same(run(entry, target.bind(X, 2)), expected)


def test_alpha_of_add_sub_and_rsub() -> None:
    for function in (torch.add, torch.sub, torch.rsub):
        entry, target = find_function(function) or pytest.fail("no operator")
        assert_same(run(entry, target.bind(X, Y, alpha=3)), function(X, Y, alpha=3))


def test_integer_bits_stay_bits() -> None:
    ids = torch.tensor([1, 2, 12])
    entry, target = find_method("__and__") or pytest.fail("no operator")
    assert_same(run(entry, target.bind(ids, 4)), ids & 4)


def test_what_has_no_integer_form_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="rounding_mode='floor'"):
        (find_function(torch.div) or pytest.fail("no operator"))[1].bind(
            X, Y, rounding_mode="floor"
        )
    with pytest.raises(NotImplementedError, match="dtype=torch.float64"):
        (find_method("mean") or pytest.fail("no operator"))[1].bind(X, 1, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match=r"torch.where\(condition, input, other\)"):
        (find_function(torch.where) or pytest.fail("no operator"))[1].bind(MASK)
    with pytest.raises(NotImplementedError, match="remainder has an integer form"):
        (find_function(torch.remainder) or pytest.fail("no operator"))[1].bind(X, Y)


def test_every_operator_of_the_families_fills_every_field() -> None:
    for entry in specs().values():
        if entry.family not in FAMILIES:
            continue
        assert entry.doc, entry.name
        assert entry.float_kernel, entry.name
        assert entry.lower, entry.name
        assert entry.flops, entry.name
        assert entry.sample, entry.name
        assert entry.march, entry.name
        assert spec(entry.name) is entry
