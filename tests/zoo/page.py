"""docs/models.md: what of the zoos passes, what is refused, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Row = Mapping[str, Any]

PACKAGES = ("torch", "timm", "transformers", "segmentation-models-pytorch")
TITLES = {
    "own": "Our own networks in their styles (part of every test run)",
    "timm": "timm",
    "transformers": "transformers",
    "smp": "segmentation-models-pytorch (decoder and encoder)",
    "module_db": "Single modules: torch's own test suite",
}
INTRO = """# Models that were tried

Every architecture below, with random weights and statistics and a tiny configuration or a small
image, goes through capture, `prepare` (march nash-e, `hybrid=True`), calibration on one batch, a
VALIDATION forward, which must be finite, and the comparison of the `_FLOAT` state with the float
model. The recorded graph itself must equal the float model in every bit. Written by
`python -m tests.zoo --log FILE --page docs/models.md`; the packages are those of
`tests/zoo/requirements.txt`.

* *equal*: how the `_FLOAT` state compares on all inputs: `bits`; `1e-5` of the largest value
  (folded batch norms and decomposed modules, [numerics](numerics.md)); `float64`: further apart in
  float32, where the net magnifies rounding, and within 1e-9 with the whole model in float64.
* *other inputs*: other batch sizes, image sizes and lengths that the float model takes: how many
  gave its result, and how many a guard refused (never a wrong number); the guard stands beside it.
* *operators*, and how many of them stay *float*: those that have no integer form, each with a
  reason in `float_ops`.
* torch's fast path of `nn.TransformerEncoder` and `nn.MultiheadAttention` in eval mode is off
  (`torch.backends.mha.set_fastpath_enabled(False)`): it has other last bits than the layers as
  they are written, and gives zeros at padded positions, so that a decoder that reads them differs.
* *prepare*: seconds for capture, fusion, configuration and fake-quantizes, on one core of a
  machine that did other work too.

What makes a guard refuse another size: a comparison of sizes that comes out otherwise (whether a
padding or a resize is needed: Swin, MobileViT), `hash()` of a size (positions kept in a cache by
shape: DETR), a causal mask of `is_causal=True` (BART), and loops over time steps (Mamba, RWKV). A
second example of the other size, in a list, adds a graph for it.
"""


def page(rows: Sequence[Row]) -> str:
    """The text of the page."""
    zoos: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        zoos[row["zoo"]].append(row)
    parts = [INTRO, _versions(), _summary(zoos)]
    for zoo, title in TITLES.items():
        found = zoos.get(zoo, [])
        table = _modules(found) if zoo == "module_db" else _architectures(found)
        parts.append(f"## {title}\n\n{table}\n" + _problems(found))
    return "\n".join(parts)


def _versions() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"Packages: {', '.join(found)}.\n"


def _summary(zoos: Mapping[str, Sequence[Row]]) -> str:
    lines = ["| zoo | pass | refused | fail |", "|---|---|---|---|"]
    for zoo in TITLES:
        counts = Counter(_word(row) for row in zoos.get(zoo, []))
        lines.append(f"| {zoo} | {counts['pass']} | {counts['refused']} | {counts['fail']} |")
    return "\n".join(lines) + "\n"


def _architectures(rows: Iterable[Row]) -> str:
    lines = [
        "| architecture | equal | other inputs | operators | float | prepare (s) |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["step"]:
            continue
        cells = [
            row["name"],
            row["equal"],
            _sizes(row),
            row["operators"],
            len(row["floats"]),
            f"{row['prepare_s']:.1f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _sizes(row: Row) -> str:
    if not row["refused"]:
        return str(row["sizes"])
    guard = row["refused"][0].partition("`")[2].partition("`")[0]
    source = row["refused"][0].partition(" from ")[2].partition(" ")[0]
    return f"{row['sizes']}, {len(row['refused'])} refused: `{guard}` ({source})"


def _modules(rows: Sequence[Row]) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row["name"].split()[0]][_word(row)] += 1
    lines = ["| module | samples that pass | refused | fail |", "|---|---|---|---|"]
    for name, found in counts.items():
        lines.append(f"| {name} | {found['pass']} | {found['refused']} | {found['fail']} |")
    return "\n".join(lines) + "\n"


def _problems(rows: Iterable[Row]) -> str:
    lines = [
        f"* {_word(row)}, {row['name']}, at the step {row['step']}: {_short(row['problem'])}"
        for row in rows
        if row["step"]
    ]
    return "\n".join(["", *lines, ""]) if lines else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:297]}..."


def _word(row: Row) -> str:
    return "pass" if not row["step"] else "refused" if row["is_refusal"] else "fail"
