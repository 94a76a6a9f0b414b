"""Writes operators.md, hbir.md and, by reference_pages.py, all of docs/reference.

Run ``python docs/generate.py`` after a change of an operator; tests/meta/test_docs.py compares.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.hbir import argument, builder, module, operation, precision, serialize, verify
from qtune.hbir.domain import DOMAIN, DOMAIN_VERSION, IR_VERSION, OPSET, DomainOp, domain_ops
from qtune.march import March
from qtune.ops import registry
from qtune.ops.kernel import HbirKernel
from qtune.ops.spec import ALL_SERIES, MarchRule, ModuleTarget, OpSpec, Target
from qtune.ops.uncovered import UNCOVERED
from qtune.report.files import write_text

HERE = Path(__file__).parent
_GENERATED = "<!-- Written by docs/generate.py: change the registry, not this page. -->"
_FUNCTIONS = (
    ("F", F),
    ("torch", torch),
    ("torch.special", torch.special),
    ("torch.linalg", torch.linalg),
    ("operator", operator),
)

_WIDEST = {"bernoulli": March.BERNOULLI2, "bayes": March.BAYES, "nash": March.NASH_P}
"""The march of each series that takes most dtypes."""

_FILE_KEYS = {
    builder.META_SCHEMA: "version of this format; a reader refuses another one",
    builder.META_STAGE: "`qat` (float with fake-quantize) or `quantized` (integers)",
    builder.META_MARCH: "the march that convert aimed at",
    builder.META_BATCH: "`open` if the first dimension may have another size than the example's, "
    "else `fixed`",
    builder.META_IMPORTED: "`1`: read from an ONNX file of another tool (docs/onnx.md)",
    module.META_INPUTS: "containers around the inputs, as JSON (see below)",
    module.META_OUTPUTS: "containers around the outputs, as JSON",
    module.META_DESCS: "descriptions of inputs and outputs by name, as JSON",
    module.META_NATIVE: "`1`: a call takes and gives the containers, `0`: flat lists",
    module.META_REPORT: "what convert noted, as JSON: operators that stay float with the reason, "
    "widened scales",
    module.META_HIGH_PRECISION: "`1`: requantize with 31-bit multipliers, apart from the GEMM",
    module.META_CONSISTENCY: "the consistency level of the prepared model, absent where unset",
    precision.META_PRECISION: "operator -> `keep_float` or `high_precision_qpp`, as JSON",
    argument.META_REMOVED: "after remove_io_op: argument -> scale of its codes (a list: one per "
    "channel of an accumulator), as JSON",
    "qtune.content": "SHA-256 of everything else in the file, to notice one that was cut off, "
    "damaged or edited",
}
_NODE_KEYS = {
    builder.META_OP: "name of the operator in the float model",
    builder.META_GROUP: "name of its fused group: that of the group's last member",
    builder.META_RESULT: "`1` on the node whose first output is the operator's result",
    builder.META_REASON: "on an operator that stays float: why, as prepare decided it",
    builder.META_MEMBERS: "on the result of a fused group: its members, as JSON",
    operation.META_MEMBER_TYPES: "on the result of a fused group: the registry names of its "
    "members, as JSON",
    builder.META_TYPE: "the operator's name in the registry (docs/operators.md)",
    builder.META_ATTRS: "its attributes in canonical form, as JSON",
    builder.META_SHAPES: "shapes of its operands and of its result, as JSON",
    builder.META_FLOPS: "its multiply-adds (of the whole group in a quantized module)",
    builder.META_SOURCE: "in a qat module: the line of the float model that calls it, and the "
    "module whose forward does, as text for messages",
}
_VALUE_KEYS = {
    builder.META_SCALE: "the scale: `real = code * scale`",
    builder.META_DTYPE: "`qint8`, `qint16` or `qint32`",
    builder.META_ZERO_POINT: "the zero point that an imported file gave it; the codes are less it",
    builder.META_RANGE: "`lowest,highest` code that can occur, where that is less than the dtype's",
}


def operators_page() -> str:
    """The page of supported operators, one table for each family."""
    entries = sorted(registry.specs().values(), key=lambda entry: entry.name)
    families = sorted({entry.family for entry in entries})
    parts = [_OPERATORS_INTRO.format(count=len(entries))]
    for family in families:
        rows = [_operator_row(entry) for entry in entries if entry.family == family]
        head = ("operator", "result", "torch spellings", *ALL_SERIES, "HBIR operators")
        parts.append(f"## {family}\n\n{_table(head, rows)}")
    rows = [(reason, " ".join(f"`{n}`" for n in sorted(names))) for reason, names in _uncovered()]
    parts.append(f"{_UNCOVERED_INTRO}\n{_table(('why', 'functions'), rows)}")
    return "\n".join(parts)


def _uncovered() -> Iterable[tuple[str, Iterable[str]]]:
    return sorted(UNCOVERED.items())


def hbir_page() -> str:
    """The page of the file format and of the domain ``qtune``."""
    keys = [
        f"{title}\n\n{_table(('key', 'value'), [(f'`{k}`', text) for k, text in found.items()])}"
        for title, found in (
            ("Of the file:", _FILE_KEYS),
            ("Of a node:", _NODE_KEYS),
            ("Of a value:", _VALUE_KEYS),
        )
    ]
    ops = [domain_ops()[name] for name in sorted(domain_ops())]
    domain = _table(
        ("operator", "inputs", "attributes", "outputs", "kernels", "what it computes"),
        [_domain_row(op) for op in ops],
    )
    intro = _HBIR_INTRO.format(
        opset=OPSET, ir=IR_VERSION, domain=DOMAIN_VERSION, schema=serialize.SCHEMA_VERSION
    )
    standard = _HBIR_STANDARD.format(
        float=", ".join(_standard(lambda kernel: kernel.run_float is not None)),
        integer=", ".join(_standard(lambda kernel: kernel.fast is not None)),
    )
    return "\n".join(
        [
            intro,
            "## Metadata\n",
            *keys,
            _HBIR_CONTAINERS,
            f"## Rules\n\n{_HBIR_RULES}\n{_rules()}",
            f"## Operators of the domain `{DOMAIN}`\n\n{_HBIR_DOMAIN}\n{domain}",
            standard,
        ]
    )


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    return {HERE / "operators.md": operators_page(), HERE / "hbir.md": hbir_page()}


def onnx_page() -> str:
    """The page of imported ONNX files. Runs all node cases of onnx, hence not among pages()."""
    import onnx_cases
    import onnx_intro

    return f"{_GENERATED}\n{onnx_intro.page()}\n{onnx_cases.page()}"


def _operator_row(entry: OpSpec) -> tuple[str, ...]:
    kernels = [f"`{k.domain}::{k.op_type}`" if k.domain else k.op_type for k in entry.kernels]
    return (
        f"**{entry.name}**<br>{entry.doc}",
        entry.rule.value,
        ", ".join(f"`{text}`" for text in _spellings(entry.targets))
        or "(made by another operator)",
        *(_support(entry.march, series) for series in ALL_SERIES),
        ", ".join(kernels) or "(those of others)",
    )


def _spellings(targets: Iterable[Target]) -> list[str]:
    texts = [_spelling(target) for target in targets]
    return [text for text in dict.fromkeys(texts) if not text.startswith(".__")]


def _spelling(target: Target) -> str:
    if isinstance(target, ModuleTarget):
        is_torch = getattr(nn, target.cls.__name__, None) is target.cls
        return f"nn.{target.cls.__name__}" if is_torch else _qualified(target.cls)
    function: Any = getattr(target, "function", None)
    if function is None:
        return f".{target.name}"  # type: ignore[union-attr]
    for prefix, namespace in _FUNCTIONS:
        for name, value in vars(namespace).items():
            if value is function and not name.startswith("_"):
                return f"{prefix}.{name}"
    return _qualified(function)


def _qualified(item: Any) -> str:
    owner = inspect.getmodule(item)
    name = getattr(owner, "__name__", "").removeprefix("builtins")
    return f"{name}.{item.__name__}".removeprefix(".")


def _support(rules: Sequence[MarchRule], series: str) -> str:
    """The dtypes of one series, ``*`` where shapes or attributes have limits as well."""
    for rule in rules:
        if series in rule.series:
            limits = "\\*" if rule.check or rule.check_dtypes else ""
            march = _WIDEST[series]
            taken = _dtypes(rule.takes(march))
            own = "".join(f", {role}: {_dtypes(names)}" for role, names in rule.operands.items())
            return f"{taken}{own} → {_dtypes(rule.gives(march))}{limits}"
    return "–"


def _dtypes(names: Sequence[str]) -> str:
    return ", ".join(name.removeprefix("q").replace("float", "f") for name in names)


def _domain_row(op: DomainOp) -> tuple[str, ...]:
    attributes = [f"{name}: {kind}" for name, kind in op.attributes.items()]
    return (
        f"`{op.name}`",
        ", ".join(op.inputs),
        ", ".join(attributes) or "–",
        ", ".join(op.outputs),
        _kinds(registry.kernel(DOMAIN, op.name)),
        op.doc,
    )


def _kinds(kernel: HbirKernel | None) -> str:
    if kernel is None:
        return "part of bodies"
    kinds = {"float": kernel.run_float, "integer": kernel.fast}
    return ", ".join(kind for kind, found in kinds.items() if found is not None)


def _standard(wanted: Any) -> list[str]:
    kernels = registry.kernels().items()
    return sorted(f"`{name}`" for (domain, name), k in kernels if not domain and wanted(k))


def _rules() -> str:
    rows = [(rule.name, "node", ", ".join(rule.stages)) for rule in verify.NODE_RULES]
    rows += [(rule.name, "value", ", ".join(rule.stages)) for rule in verify.VALUE_RULES]
    return _table(("rule", "of each", "stages"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_OPERATORS_INTRO = f"""{_GENERATED}
# Operators

The {{count}} operators of the registry (`qtune/ops/<family>/<operator>.py`, one file each).

* *result*: how the result gets its scale. `own scale`: an observer of its own. `input's scale`: it
  keeps that of its first quantized operand. `table`: own scale, a look-up table after pre_export.
  `decomposed`: prepare replaces it by other operators. `no scale`: masks, indices, float.
* *torch spellings*: `F` is `torch.nn.functional`; `.name` is a method of a tensor. Python's
  operators (`a + b`, `x[i]`) are the functions of `operator`; `getattr` is `x.T` and its like.
* A column for each series of marches: dtypes of quantized inputs → dtypes of the result, `–` where
  it has no such operator, `*` where it also limits shapes or attributes. An integer dtype
  that a march lacks is replaced in prepare, with the reason; `f16` is for nash-p, nash-h and
  nash-b. Tensors have up to 4 dimensions on bernoulli, else 10.
* *HBIR operators*: those that the file owns, standard ONNX or of the domain `qtune` (hbir.md).

Anything else in a model stays float; `prepare(...).float_ops` lists it with the reason. `export`
takes the operators of this page only, float ones among them; what is not here has to stay outside
of the exported model.
"""
_UNCOVERED_INTRO = """## What stays float

Every other function of torch, with the reason that `prepare(...).float_ops` states. A name stands
for the function, the method and its in-place form.
"""
_HBIR_INTRO = f"""{_GENERATED}
# HBIR

A `.bc` file is an ONNX protobuf (opset {{opset}}, IR version {{ir}}, domain `{DOMAIN}` version
{{domain}}, format version {{schema}}). Netron shows it, `onnx.checker` accepts it, ONNX Runtime
runs it. Reading needs neither torch nor pickle.

Two stages share the format. `qat` is float: standard operators, weights as they are, and a
FakeQuant wherever a value lies on a grid. `quantized` holds integers: codes are stored as INT8,
INT16 or INT32 tensors, borders are Quantize and Dequantize, and what stays float lies outside
them. Codes have no zero point. Nodes are named `<operator>/<type>`, initializers
`<operator>.<role>`.

What ONNX has no operator for is in the domain `{DOMAIN}`. Each of its operators that a file uses
comes with a function body of standard operators, so any ONNX runtime computes it; the emulated BPU
runs its own kernels instead, which give the same bits.
"""
_HBIR_CONTAINERS = """Containers are nested objects: `{"leaf": n}` is the n-th tensor,
`{"const": value}` a number, text, bool or null, `{"list": [...]}`, `{"tuple": [...]}`,
`{"dict": [[key, spec], ...]}`, and `{"object": "module:Class", "fields": [[name, spec], ...]}` a
named tuple or dataclass, which comes back as a dict where the class is not loaded.
"""
_HBIR_RULES = f"""Checked after export and after convert; an error shows the node. A function has
at most {verify.MAX_ARGUMENTS} inputs and as many outputs, every operator has one result, and a
value is made before it is used.
"""
_HBIR_DOMAIN = """Inputs and attributes are all mandatory; a variant is another operator. `m` and
`n` are the integer form of a multiplier, `m / 2**n`; `lo`, `hi`, `qmin`, `qmax` bound the codes;
`to` is the ONNX type of the result. *kernels*: `float` runs in a qat module, `integer` in a
quantized one.
"""
_HBIR_STANDARD = """## Standard operators

With a float kernel: {float}.

On codes as well, where they only move or combine what they are given: {integer}.
"""


def main() -> None:
    """Write the pages, those of docs/reference too."""
    import reference_pages

    reference_pages.main()
    for path, text in pages().items():
        write_text(path, text)
    write_text(HERE / "onnx.md", onnx_page())


if __name__ == "__main__":
    main()
