"""``assert_bit_exact``: integer outputs equal a tensor, a hash, or the reference kernels' bits."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from qtune.capture.inputs import as_example_list
from qtune.errors import ArgumentError
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult
from qtune.testing.running import chunks, model_name, outputs_of


def assert_bit_exact(
    module: HbirModule, *, inputs: Any, against: Any, name: str | None = None
) -> AssertionResult:
    """Assert that the outputs of an HBIR module have exactly the expected bits.

    ``against``: ``"reference"`` (the NumPy kernels of the same module), a sha256 hex digest as
    ``output_hash`` gives it, another HBIR module, or the expected tensor(s) (a tensor, or a dict by
    output name).
    """
    if not isinstance(module, HbirModule):
        raise ArgumentError(f"assert_bit_exact takes an HBIR module, got {type(module).__name__}")
    outputs = outputs_of(module, chunks((module,), inputs))
    if isinstance(against, str) and against != "reference":
        return _hash(outputs, against, model_name(module, name))
    if isinstance(against, str):
        expected = _reference(module, inputs)
    elif isinstance(against, HbirModule):
        expected = outputs_of(against, chunks((against,), inputs))
    else:
        expected = {"": against} if isinstance(against, Tensor) else dict(against)
    return _tensors(outputs, expected, model_name(module, name))


def output_hash(module: HbirModule, inputs: Any) -> str:
    """sha256 over names, dtypes, shapes and bytes of all outputs."""
    return _digest(outputs_of(module, chunks((module,), inputs)))


def _digest(outputs: dict[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name, value in sorted(outputs.items()):
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        sha.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _reference(module: HbirModule, inputs: Any) -> dict[str, Tensor]:
    from qtune.capture.structure import flatten_named
    from qtune.hbir.feeding import outputs_from

    function = module[0]
    found: dict[str, list[Tensor]] = {}
    for part in chunks((module,), as_example_list(inputs)):
        feed = bind_call(function, part.inputs.args, dict(part.inputs.kwargs))
        results = function.run(feed, mode="reference")
        structured = outputs_from(function, [results[o.name] for o in function.outputs])
        for name, leaf in flatten_named(structured):
            found.setdefault(name, []).append(part.trim(leaf))
    return {name: torch.cat(leaves) for name, leaves in found.items()}


def _hash(outputs: dict[str, Tensor], expected: str, model: str) -> AssertionResult:
    got = _digest(outputs)
    return conclude(
        AssertionResult(
            check="bit_exact",
            model=model,
            ok=got == expected,
            where="outputs",
            got=f"sha256 {got[:12]}",
            limit=f"sha256 {expected[:12]}",
            metrics={"equal": float(got == expected)},
            table=f"sha256 {got}\nexpected {expected}",
        )
    )


def _tensors(
    outputs: dict[str, Tensor], expected: dict[str, Tensor], model: str
) -> AssertionResult:
    if set(outputs) != set(expected):
        raise ArgumentError(
            f"assert_bit_exact: outputs {sorted(outputs)}, expected {sorted(expected)}"
        )
    lines, count, where = [], 0, "outputs"
    for name, value in outputs.items():
        wanted = expected[name]
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            count += value.numel()
            lines.append(
                f"output {name}: {value.dtype} {tuple(value.shape)}, expected {wanted.dtype} "
                f"{tuple(wanted.shape)}"
            )
            continue
        differ = (value != wanted) & ~((value != value) & (wanted != wanted))
        if differ.any():
            index = tuple(int(i) for i in differ.nonzero()[0])
            count += int(differ.sum())
            where = f"output {name}".rstrip()
            got, want = value[index].item(), wanted[index].item()
            lines.append(f"{where}: first difference at {index}: {got}, expected {want}")
    total = sum(value.numel() for value in outputs.values())
    return conclude(
        AssertionResult(
            check="bit_exact",
            model=model,
            ok=not count,
            where=where,
            got=f"{count} of {total} elements differ",
            limit="0",
            metrics={"differing_elements": count},
            limits={"differing_elements": 0},
            table="\n".join(lines),
        )
    )
