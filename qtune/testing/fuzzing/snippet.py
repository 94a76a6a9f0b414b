"""A failing example as a script that anybody can run."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

from qtune.testing.fuzzing.call import OperatorCall
from qtune.testing.fuzzing.literals import literal
from qtune.testing.fuzzing.operands import modules_of

_DOTTED = re.compile(r"\b((?:\w+\.)+\w+)\.\w+\(")
"""The modules that literals of dataclasses name."""

KERNELS, INTEGERS = "kernels", "integers"

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
expected = line.expected(got)
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


def table_snippet(place: str, dtype: str, x: object, march: str, limit: float) -> str:
    """The script for a table that strays from its function by more than ``limit`` steps."""
    text = (
        f"call = TableCall({place}.target, {literal(x)}, {dtype!r}, {march!r})\n"
        f"got, expected, step = call.run({place}.against)\n"
        f"print(compare(got, expected, {limit}, step))\n"
    )
    imports = ["from qtune.testing.fuzzing import TableCall, compare"]
    return _with_imports(text, imports, [place.rpartition(".")[0]])


def _with_imports(text: str, imports: Sequence[str], modules: Iterable[str]) -> str:
    known = list(imports)
    if "full(" in text.replace("torch.full(", ""):
        known = [f"{line}, full" for line in known[:1]] + known[1:]
    head = ["import torch"] if "torch." in text else []
    used = {found for found in _DOTTED.findall(text) if found in sys.modules}
    names = [f"import {name}" for name in sorted({*modules, *used} - {"torch"})]
    blocks = ["\n".join(block) for block in (head, names + known) if block]
    return "\n\n".join(blocks) + "\n\n" + text
