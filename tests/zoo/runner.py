"""Takes one architecture through capture, prepare, calibration and its two states."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs, as_inputs
from qtune.capture.recorder import capture
from qtune.capture.structure import flatten
from qtune.errors import GuardError, QtuneError
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat.op import iter_ports
from qtune.quantization import FakeQuantState, auto_calibrate, prepare, set_fake_quantize

RTOL = 1e-5
"""FuseBN and decomposed modules, relative to the largest value (numerics.md section 5)."""

RTOL_DOUBLE = 1e-9
"""The same with the whole model in float64, where nets with random weights magnify the rounding of
float32 past 1e-5: what is left then is no rounding."""


@dataclass(frozen=True)
class Architecture:
    """One model of a zoo. ``build`` makes it; ``example`` and each of ``others`` make a call of it,
    from a seed. ``loose``: why its result may be further from the float model than numerics.md
    section 5 says, else empty.
    """

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    others: tuple[Callable[[], Any], ...] = ()
    loose: str = ""


@dataclass(frozen=True)
class Result:
    """What came of it. ``step``: the one that failed, else empty; ``problem``: how; ``is_refusal``:
    qtune said before any result that it has no form for the model.

    ``sizes`` and ``refused``: other inputs that gave the float model's result, and those that a
    guard refused. ``equal``: how the ``_FLOAT`` state compares: ``bits``, ``1e-5``, ``float64``.
    ``operators`` and ``floats``: how many were found, and how many of them stay float.
    """

    name: str
    step: str = ""
    problem: str = ""
    is_refusal: bool = False
    equal: str = ""
    sizes: int = 0
    refused: tuple[str, ...] = ()
    operators: int = 0
    floats: tuple[tuple[str, str], ...] = ()
    capture_s: float = 0.0
    prepare_s: float = 0.0
    total_s: float = 0.0
    error: Exception | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the exception."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "error"}

    @property
    def passed(self) -> bool:
        """Whether every step went well."""
        return not self.step


class _Failed(Exception):  # noqa: N818 - carries a step to its result
    pass


def run(architecture: Architecture) -> Result:
    """All steps; never raises for what the model or qtune does."""
    facts: dict[str, Any] = {"name": architecture.name}
    started = time.perf_counter()
    try:
        with _torch_layers_as_written():
            for step, work in _STEPS.items():
                facts["step"] = step
                work(architecture, facts)
        facts["step"] = ""
    except Exception as error:  # the result says what happened
        facts["problem"] = f"{type(error).__name__}: {error}"
        facts["is_refusal"] = isinstance(error, NotImplementedError | QtuneError)
        facts["error"] = error
    facts["total_s"] = time.perf_counter() - started
    kept = {field.name for field in fields(Result)}
    return Result(**{key: value for key, value in facts.items() if key in kept})


@contextmanager
def _torch_layers_as_written() -> Iterator[None]:
    """Without the fast path of nn.TransformerEncoder and nn.MultiheadAttention in eval mode: it has
    other last bits, and zeros at padded positions, so that what reads them differs.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _build(architecture: Architecture, facts: dict[str, Any]) -> None:
    torch.manual_seed(0)
    facts["model"] = randomized(architecture.build().eval())
    facts["calls"] = [_seeded(make) for make in (architecture.example, *architecture.others)]
    with torch.no_grad():
        facts["expected"] = [_float_result(facts["model"], call) for call in facts["calls"]]
    if facts["expected"][0] is None:
        call(facts["model"], facts["calls"][0])


def randomized(model: nn.Module) -> nn.Module:
    """Parameters that start at a constant (norms, biases, tokens, layer scales) get values of
    their own, and so do statistics: else whole branches are multiplied by zero.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1 and _is_constant(parameter):
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for module in model.modules():
            if (
                isinstance(module, nn.modules.batchnorm._BatchNorm)
                and module.running_var is not None
            ):
                assert module.running_mean is not None
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model


def _is_constant(tensor: Tensor) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())


def _capture(architecture: Architecture, facts: dict[str, Any]) -> None:
    started = time.perf_counter()
    with torch.no_grad():
        recorded = capture(copy.deepcopy(facts["model"]), facts["calls"][0])
    facts["capture_s"] = time.perf_counter() - started
    for place, got in _results(recorded, facts, refusals=[]):
        if got != "bits":
            raise _Failed(f"the recorded graph differs on input {place}: {got}")


def _prepare(architecture: Architecture, facts: dict[str, Any]) -> None:
    started = time.perf_counter()
    facts["prepared"] = prepared = prepared_model(facts["model"], facts["calls"][0])
    facts["prepare_s"] = time.perf_counter() - started
    facts["operators"] = len(prepared.calls())
    facts["floats"] = tuple((op.op, op.reason) for op in prepared.float_ops)


def prepared_model(model: nn.Module, example: Any) -> PreparedModel:
    """``hybrid``: what the march lacks stays float, as everything else that is no operator."""
    return prepare(model, example, hybrid=True).eval()


def _calibrate(architecture: Architecture, facts: dict[str, Any]) -> None:
    if next(iter_ports(facts["prepared"]), None) is not None:  # else all of it stays float
        auto_calibrate(facts["prepared"], [facts["calls"][0]])


def _float_state(architecture: Architecture, facts: dict[str, Any]) -> None:
    prepared: PreparedModel = facts["prepared"]
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    refusals: list[str] = []
    found = list(_results(prepared, facts, refusals))
    facts["refused"] = tuple(refusals)
    facts["sizes"] = len(found) - 1
    facts["equal"] = max((got for _, got in found), key=_rank)
    if _rank(facts["equal"]) and not architecture.loose:
        facts["equal"] = _in_double(facts)


def _rank(got: str) -> int:
    return {"bits": 0, "1e-5": 1}.get(got, 2)


def _in_double(facts: dict[str, Any]) -> str:
    """For what is within 1e-5 that stays the answer; the rest must agree in float64."""
    if facts["equal"] == "1e-5":
        return "1e-5"
    model = copy.deepcopy(facts["model"]).double()
    calls = [_as_double(item) for item in facts["calls"]]
    with torch.no_grad():
        facts = {**facts, "calls": calls, "expected": [_float_result(model, c) for c in calls]}
    if facts["expected"][0] is None:
        raise _Failed(f"_FLOAT differs from the float model: {facts['equal']}")
    doubled = prepared_model(model, calls[0])
    set_fake_quantize(doubled, FakeQuantState._FLOAT)
    for place, got in _results(doubled, facts, [], RTOL_DOUBLE):
        if got not in ("bits", "1e-5"):
            raise _Failed(f"_FLOAT differs in float64 on input {place}: {got}")
    return "float64"


def _validation(architecture: Architecture, facts: dict[str, Any]) -> None:
    prepared: PreparedModel = facts["prepared"]
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    with torch.no_grad():
        got = call(prepared, facts["calls"][0])
    for ours, theirs in zip(flatten(got)[0], flatten(facts["expected"][0])[0], strict=True):
        if not isinstance(theirs, Tensor):
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise _Failed(f"VALIDATION gives {_sort(ours)}, the float model {_sort(theirs)}")
        if bool(theirs.isfinite().all()) and not bool(ours.isfinite().all()):
            raise _Failed("VALIDATION gives values that are not finite")


_STEPS: dict[str, Callable[[Architecture, dict[str, Any]], None]] = {
    "build": _build,
    "capture": _capture,
    "prepare": _prepare,
    "calibrate": _calibrate,
    "float state": _float_state,
    "validation": _validation,
}


def call(model: nn.Module, inputs: Any) -> Any:
    """``model`` on fresh copies of the tensors of ``inputs``."""
    given = copy.deepcopy(as_inputs(inputs))
    return model(*given.args, **given.kwargs)


def _seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(1)
    return make()


def _float_result(model: nn.Module, inputs: Any) -> Any:
    """``None`` where the float model itself does not take the input."""
    try:
        torch.manual_seed(2)
        return call(model, inputs)
    except Exception:
        return None


def _results(
    model: GraphModel, facts: dict[str, Any], refusals: list[str], rtol: float = RTOL
) -> Iterator[tuple[int, str]]:
    """How the result compares on every input that the float model takes."""
    for place, (inputs, expected) in enumerate(zip(facts["calls"], facts["expected"], strict=True)):
        if expected is None:
            continue
        try:
            with torch.no_grad():
                torch.manual_seed(2)
                got = call(model, inputs)
        except GuardError as error:
            if not place:
                raise
            refusals.append(str(error))
            continue
        yield place, difference(got, expected, rtol)


def difference(got: Any, expected: Any, rtol: float = RTOL) -> str:
    """``bits``, ``1e-5`` (within ``rtol`` of the largest value of each tensor) or a text."""
    ours, theirs = flatten(got), flatten(expected)
    if ours[1] != theirs[1]:
        return f"the structure {ours[1]} where {theirs[1]} was expected"
    texts = {_leaf_difference(*pair, rtol) for pair in zip(ours[0], theirs[0], strict=True)}
    return max(texts or {"bits"}, key=_rank)


def _leaf_difference(got: Any, expected: Any, rtol: float) -> str:
    if not isinstance(expected, Tensor):
        return "bits" if type(got) is type(expected) and got == expected else f"{got!r}"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{_sort(got)} where {_sort(expected)} was expected"
    if torch.equal(got, expected) or torch.equal(got.nan_to_num(), expected.nan_to_num()):
        return "bits"
    if not expected.is_floating_point():
        return f"{int((got != expected).sum())} of {expected.numel()} integers differ"
    finite = expected.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return "other values are not finite"
    worst = float((got - expected)[finite].abs().max()) / float(expected[finite].abs().max())
    return "1e-5" if worst <= rtol else f"{worst:.1e} of the largest value"


def _sort(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def _as_double(inputs: Any) -> Inputs:
    given = as_inputs(inputs)
    return Inputs(*map(_doubled, given.args), **{k: _doubled(v) for k, v in given.kwargs.items()})


def _doubled(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
