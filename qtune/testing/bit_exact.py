"""``assert_bit_exact``: outputs equal tensors, a hash, the reference kernels' bits, another's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtune.errors import ArgumentError, kind_of
from qtune.hbir.feeding import bind_call, outputs_from
from qtune.hbir.module import HbirModule
from qtune.hbir.result import OpResult
from qtune.report.progress import progress
from qtune.testing.arguments import OnnxPath, check_hbir
from qtune.testing.onnx_model import BC, OnnxModel, as_model, stage_error
from qtune.testing.origin import origin_of
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult, LayerResult
from qtune.testing.running import Chunk, chunks, collect, joined

_CHECK = "assert_bit_exact"
REFERENCE = "reference"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Expected = Mapping[str, Tensor]


def assert_bit_exact(
    module: HbirModule | OnnxPath, *, inputs: Any, against: Any, name: str | None = None
) -> AssertionResult:
    """Assert that the outputs of an HBIR module have exactly the expected bits.

    ``against``: ``"reference"`` (the NumPy kernels of the same module), another HBIR module, a
    sha256 hex digest as ``output_hash`` gives it, or the expected tensors or arrays (one, a
    sequence in the order of the outputs, or a dict by output name). For the first two the message
    names the first operator that differs. ``inputs`` as for ``assert_consistency``. Modules may
    come as paths of .bc files.
    """
    __tracebackhide__ = True
    module, against = check_hbir(_CHECK, "module", module), _other(against)
    parts = chunks((module, against) if isinstance(against, HbirModule) else (module,), inputs)
    label = name or ""
    is_reference = isinstance(against, str) and against == REFERENCE
    by_operator = is_reference or isinstance(against, HbirModule)
    if is_reference and module.stage != "quantized":
        raise ArgumentError(
            f"{_CHECK}: only integer modules (stages.quantized_bc) have reference kernels, this "
            f"one is of the stage {module.stage!r}; convert it, or give the expected tensors"
        )
    run = _Run(module, parts, observe=by_operator)
    if isinstance(against, HbirModule):
        return _compare(run, _Run(against, parts, observe=True), module, label)
    if is_reference:
        return _compare(run, _Run(module, parts, REFERENCE, observe=True), module, label)
    if isinstance(against, str):
        return _hash(run.outputs, against, module, label)
    return _result(run.outputs, _expected(against, run.outputs), (), module, label)


def _other(against: Any) -> Any:
    """``against``; a path of a .bc file as its module."""
    is_path = isinstance(against, str) and against.endswith(BC)
    if is_path or isinstance(against, PathLike):
        against = as_model(_CHECK, "against", against)
    if isinstance(against, OnnxModel):
        expected = "a module, a .bc file, 'reference', a digest or tensors (floats have no codes)"
        raise stage_error(_CHECK, "against", against, expected)
    return against


def output_hash(module: HbirModule | OnnxPath, inputs: Any) -> str:
    """sha256 over names, dtypes, shapes and bytes of all outputs."""
    module = check_hbir("output_hash", "module", module)
    return _digest(_Run(module, chunks((module,), inputs), observe=False).outputs)


class _Run:
    """A module run on all chunks: its outputs by name, the result of every operator per chunk."""

    def __init__(
        self, module: HbirModule, parts: Sequence[Chunk], mode: str = "fast", *, observe: bool
    ) -> None:
        self.records: dict[str, list[OpResult]] = {}
        found: dict[str, list[Tensor]] = {}
        function = module[0]
        for part in progress(parts, mode, unit="batch"):
            feed = bind_call(function, part.inputs.args, dict(part.inputs.kwargs))
            # looking at every operator costs several times the run itself
            results = function.run(feed, mode, self._note if observe else None)
            leaves = [results[item.name] for item in function.outputs]
            collect(outputs_from(function, leaves), part, found)
        self.outputs = joined(found)

    def _note(self, name: str, result: OpResult, /) -> None:
        self.records.setdefault(name, []).append(result)


def _compare(run: _Run, other: _Run, module: HbirModule, name: str) -> AssertionResult:
    __tracebackhide__ = True
    layers = [
        _layer(key, records, other.records[key])
        for key, records in run.records.items()
        if key in other.records
    ]
    return _result(run.outputs, other.outputs, layers, module, name)


def _layer(name: str, found: Sequence[OpResult], wanted: Sequence[OpResult]) -> LayerResult:
    """One operator: how many of its elements have other bits."""
    differing = sum(_count(_plain(a), _plain(b)) for a, b in zip(found, wanted, strict=True))
    total = sum(result.values.numel() for result in found)
    first = found[0]
    return LayerResult(
        name,
        float(differing),
        differing == 0,
        float(differing),
        tuple(first.values.shape),
        first.dtype,
        first.scale,
        differing / total if total else 0.0,
    )


def _plain(result: OpResult) -> Tensor:
    return result.values if result.codes is None else result.codes


def _count(a: Tensor, b: Tensor) -> int:
    """Elements of ``a`` with other bits than ``b``; all of them where shape or dtype differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.numel(), b.numel(), 1)
    return int(_differ(a, b).sum())


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Where the bits differ: 0.0 and -0.0 do, NaN of the same bits do not."""
    as_integer = _INTEGERS[a.element_size()]
    return a.contiguous().view(as_integer) != b.contiguous().view(as_integer)


def _digest(outputs: Expected) -> str:
    sha = hashlib.sha256()
    for name, value in sorted(outputs.items()):
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        sha.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _hash(outputs: Expected, expected: str, module: HbirModule, name: str) -> AssertionResult:
    __tracebackhide__ = True
    if not _DIGEST.fullmatch(expected):
        raise ArgumentError(
            f"{_CHECK}: against must be 'reference', 64 hex digits, a module or tensors but got "
            f"{expected!r}"
        )
    got, origin = _digest(outputs), origin_of(module, name)
    return conclude(
        AssertionResult(
            check="bit_exact",
            model=origin.model,
            ok=got == expected,
            where="outputs",
            got=f"sha256 {got[:12]}",
            limit=f"sha256 {expected[:12]}",
            metrics={"equal": float(got == expected)},
            table=f"sha256 {got}\nexpected {expected}",
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _expected(against: Any, outputs: Expected) -> dict[str, Tensor]:
    """The expected tensors by output name."""
    if isinstance(against, Mapping):
        named = dict(against)
    elif isinstance(against, Tensor | np.ndarray):
        named = dict(zip(outputs, [against], strict=False))
    elif isinstance(against, list | tuple) and len(against) == len(outputs):
        named = dict(zip(outputs, against, strict=True))
    else:
        raise ArgumentError(
            f"{_CHECK}: against must be 'reference', a sha256 digest, an HBIR module, or one "
            f"tensor for each of the outputs {list(outputs)}, but got {type(against).__name__}"
        )
    for key, value in named.items():
        if not isinstance(value, Tensor | np.ndarray) or getattr(value.dtype, "hasobject", False):
            raise ArgumentError(
                f"{_CHECK}: against[{key!r}] must be a tensor of numbers but got {kind_of(value)}"
            )
    if set(named) != set(outputs):
        raise ArgumentError(f"{_CHECK}: outputs are {list(outputs)}, expected {list(named)}")
    return {key: torch.as_tensor(value) for key, value in named.items()}


def _result(
    outputs: Expected,
    expected: Expected,
    layers: Sequence[LayerResult],
    module: HbirModule,
    name: str,
) -> AssertionResult:
    __tracebackhide__ = True
    if set(outputs) != set(expected):
        raise ArgumentError(f"{_CHECK}: outputs are {list(outputs)}, expected {list(expected)}")
    counts = {key: _count(value, expected[key]) for key, value in outputs.items()}
    lines = [
        _difference(f"output {key}".rstrip(), value, expected[key])
        for key, value in outputs.items()
        if counts[key]
    ]
    first = next((layer.name for layer in layers if not layer.ok), "")
    bad = next((f"output {key}".rstrip() for key, count in counts.items() if count), "outputs")
    count, total = sum(counts.values()), sum(value.numel() for value in outputs.values())
    origin = origin_of(module, name)
    return conclude(
        AssertionResult(
            check="bit_exact",
            model=origin.model,
            ok=not count,
            where=(first or bad) if count else "outputs",
            got=f"{count} of {total} elements differ",
            limit="0",
            metrics={"differing_elements": count},
            limits={"differing_elements": 0},
            layers=origin.located(layers),
            measured="elements that differ",
            table="\n".join(lines),
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _difference(where: str, value: Tensor, wanted: Tensor) -> str:
    if value.shape != wanted.shape or value.dtype != wanted.dtype:
        return (
            f"{where}: {value.dtype} {tuple(value.shape)}, expected {wanted.dtype} "
            f"{tuple(wanted.shape)}"
        )
    index = tuple(int(i) for i in _differ(value, wanted).nonzero()[0])
    got, want = value[index].item(), wanted[index].item()
    return f"{where}: first difference at {index}: {got}, expected {want}"
