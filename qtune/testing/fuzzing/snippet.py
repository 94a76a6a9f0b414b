"""A failing example as a script that anybody can run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from qtune.ops.spec import OpSpec
from qtune.testing.fuzzing.call import OperatorCall
from qtune.testing.fuzzing.literals import literal

KERNELS, INTEGERS = "kernels", "integers"
_OURS = ("qtune", "torch", "numpy", "builtins", "functools")

_CHECKS = {
    KERNELS: """\
line = call.line()
got = line.run("fast")
expected = line.run("reference")
print(first_difference(got, expected))
""",
    INTEGERS: """\
line = call.line()
got = line.run("fast")
expected = line.fake_quant()
print(first_difference(got, expected, line.steps, limit={limit}))
""",
}


def call_snippet(call: OperatorCall, prop: str, limit: float = 0.0) -> str:
    """The script that makes the call, runs both sides and prints where they differ."""
    fields = [repr(call.op), literal(call.operands)]
    if call.attrs:
        fields.append(f"attrs={literal(dict(call.attrs))}")
    fields += [f"dtype={call.dtype!r}", f"march={call.march!r}"]
    if call.scales:
        fields.append(f"scales={literal(call.scales)}")
    if call.output_scale is not None:
        fields.append(f"output_scale={literal(call.output_scale)}")
    if call.calibrated_on != "data":
        fields.append(f"calibrated_on={call.calibrated_on!r}")
    body = "call = OperatorCall(\n" + "".join(f"    {field},\n" for field in fields) + ")\n"
    text = body + _CHECKS[prop].format(limit=limit)
    imports = ["from qtune.testing.fuzzing import OperatorCall, first_difference"]
    return _with_imports(text, imports, modules_of(call.entry))


def pair_snippet(place: str, inputs: Sequence[object], compared: str) -> str:
    """The script for a test that ``fuzz`` made. ``place``: ``module.name`` of the test."""
    text = (
        f"inputs = {literal(tuple(inputs))}\n"
        f"got = {place}.target(*inputs)\n"
        f"expected = {place}.against(*inputs)\n"
        f"print(compare(got, expected{compared}))\n"
    )
    imports = ["from qtune.testing.fuzzing import compare"]
    return _with_imports(text, imports, [place.rpartition(".")[0]])


def table_snippet(place: str, dtype: str, x: object, march: str) -> str:
    """The script for a table that strays from its function."""
    text = (
        f"call = TableCall({place}.target, {literal(x)}, {dtype!r}, {march!r})\n"
        f"got, expected, step = call.run({place}.against)\n"
        f"print(compare(got, expected, call.bound, step))\n"
    )
    imports = ["from qtune.testing.fuzzing import TableCall, compare"]
    return _with_imports(text, imports, [place.rpartition(".")[0]])


def modules_of(entry: OpSpec) -> list[str]:
    """The modules outside of qtune that register an operator."""
    kernels = [f for k in entry.kernels for f in (k.run_float, k.convert, k.reference, k.fast)]
    parts = (entry.float_kernel, entry.lower, entry.decompose, entry.table, entry.sample, *kernels)
    names = {getattr(part, "__module__", None) or "" for part in parts}
    return sorted(n for n in names if n and n.partition(".")[0] not in _OURS and n in sys.modules)


def _with_imports(text: str, imports: Sequence[str], modules: Iterable[str]) -> str:
    known = list(imports)
    if "full(" in text.replace("torch.full(", ""):
        known = [f"{line}, full" for line in known[:1]] + known[1:]
    head = ["import torch"] if "torch." in text else []
    names = [f"import {name}" for name in modules]
    blocks = ["\n".join(block) for block in (head, names + known) if block]
    return "\n\n".join(blocks) + "\n\n" + text
