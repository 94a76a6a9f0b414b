"""Writes docs/reference: assertions, commands, metrics, options, from what the code says of itself.

Run ``python docs/reference_pages.py`` after a change; tests/meta/test_reference_pages.py compares.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import qtune.testing
from pytest_qtune import options, plugin
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.metric import _registry as registered
from qtune.report.files import write_text

FOLDER = Path(__file__).parent / "reference"
_GENERATED = "<!-- Written by docs/reference_pages.py: change the docstring, not this page. -->"
_COLUMNS = 88
_ASSERTS = "assert_"
_UNITS = {
    "ATOL": "that of the values",
    "L1": "that of the values",
    "MSE": "that of the values, squared",
    "COSINE": "none, -1 to 1",
    "SQNR": "dB",
    "RTOL": "none, a ratio",
    "KL": "nats",
}


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    return {
        FOLDER / "assertions.md": assertions_page(),
        FOLDER / "commands.md": commands_page(),
        FOLDER / "metrics.md": metrics_page(),
        FOLDER / "options.md": options_page(),
    }


def assertions_page() -> str:
    """The page of everything in ``qtune.testing``."""
    names = sorted(qtune.testing.__all__)
    asserts = [name for name in names if name.startswith(_ASSERTS)]
    others = [name for name in names if not name.startswith(_ASSERTS)]
    overview = [(f"[`{n}`](#{n})", _first(getattr(qtune.testing, n))) for n in asserts]
    parts = [
        _ASSERTIONS_INTRO,
        _table(("assertion", "what it asserts"), overview),
        *(_entry(name) for name in asserts),
        f"## Beside the assertions\n\n{_OTHERS_INTRO}",
        *(_entry(name) for name in others),
    ]
    return _page(parts)


def commands_page() -> str:
    """The page of the command ``qtune``."""
    import command_pages

    return _page(list(command_pages.parts()))


def metrics_page() -> str:
    """The page of the built-in metrics."""
    rows = [_metric_row(i) for i in sorted(built_in_metrics(), key=lambda info: info.name)]
    register = Metric.register
    parts = [
        _METRICS_INTRO,
        _table(("metric", "better is", "unit", "formula"), rows),
        "## Metrics of your own",
        _signature("Metric.register", register),
        _markdown(inspect.getdoc(register) or ""),
    ]
    return _page(parts)


def _metric_row(info: MetricInfo) -> tuple[str, ...]:
    formula = _in_one_line(_markdown(inspect.getdoc(info.function) or ""))
    better = "larger" if info.ascending else "smaller"
    return f"`{info.name}`", better, _UNITS[info.name], formula


def built_in_metrics() -> Iterator[MetricInfo]:
    """The metrics that come with qtune."""
    return (info for info in registered.values() if info.is_built_in)


def options_page() -> str:
    """The page of what the pytest plugin adds: options, markers, fixtures."""
    markers = [plugin.MARKER, plugin.SLOW_MARKER]
    marker_rows = [(f"`@pytest.mark.{m.partition(':')[0]}`", m.partition(": ")[2]) for m in markers]
    fixtures = [_fixture(name) for name in plugin.__all__]
    parts = [
        _OPTIONS_INTRO,
        options.markdown(),
        "## Markers",
        _table(("marker", "meaning"), marker_rows),
    ]
    return _page([*parts, "## Fixtures", *fixtures])


def _fixture(name: str) -> str:
    function = inspect.unwrap(getattr(plugin, name))
    return f"### {name}\n\n{_markdown(inspect.getdoc(function) or '')}"


def _entry(name: str) -> str:
    """Heading, signature, docstring; for a class also its members."""
    item = getattr(qtune.testing, name)
    parts = [f"## {name}", _signature(name, item), _markdown(inspect.getdoc(item) or "")]
    if inspect.isclass(item):
        members = [(f"`{label}`", text) for label, text in _members(item)]
        parts += [_table(("member", "what it is"), members)] if members else []
    return "\n\n".join(parts)


def _members(cls: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties with the first sentence about each."""
    fields = (
        {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else ()
    )
    for name, value in vars(cls).items():
        if name.startswith("_") or name in fields:
            continue
        if isinstance(value, property | cached_property):
            yield name, _first(value)
        elif callable(value):
            yield f"{name}{_arguments(value)}", _first(value)


def _arguments(function: Any) -> str:
    names = [str(p.replace(annotation=p.empty)) for p in _parameters(function)]
    return f"({', '.join(names)})"


def _parameters(function: Any) -> list[inspect.Parameter]:
    found = inspect.signature(function).parameters.values()
    return [parameter for parameter in found if parameter.name != "self"]


def _signature(name: str, item: Any) -> str:
    """A code block with one line, or one line for each argument."""
    returns = "" if inspect.isclass(item) else _returns(item)
    texts = list(_argument_texts(item))
    line = f"{name}({', '.join(texts)}){returns}"
    if len(line) > _COLUMNS:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){returns}"
    return f"```python\n{line}\n```"


def _argument_texts(item: Any) -> Iterator[str]:
    keyword_only = False
    for parameter in _parameters(item):
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        keyword_only = keyword_only or parameter.kind is parameter.VAR_POSITIONAL
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        typed = (
            "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
        )
        space = " = " if typed else "="
        default = "" if parameter.default is parameter.empty else f"{space}{_default(parameter)}"
        yield f"{star}{parameter.name}{typed}{default}"


def _default(parameter: inspect.Parameter) -> str:
    """A default as code; that of a dataclass field made by a factory is its empty value."""
    default = parameter.default
    text = repr(default)
    if text == "<factory>":
        return "{}"
    return re.sub(r"^<(\w+\.\w+): .*>$", r"\1", text)  # an enum


def _returns(function: Any) -> str:
    annotation = inspect.signature(function).return_annotation
    return "" if annotation is inspect.Signature.empty else f" -> {_type(annotation)}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")


def _first(item: Any) -> str:
    """The first paragraph of a docstring in one line."""
    found = item.func if isinstance(item, cached_property) else item
    return _in_one_line(_markdown(inspect.getdoc(found) or "").partition("\n\n")[0])


def _in_one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _markdown(docstring: str) -> str:
    """The docstring's markup: double backquotes become single ones, roles their text."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring)
    return text.replace("``", "`")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _page(parts: Sequence[str]) -> str:
    title, rest = parts[0], parts[1:]
    return "\n\n".join([_GENERATED, title.strip(), *rest]) + "\n"


_ASSERTIONS_INTRO = """# Assertions

All of `qtune.testing`; `pytest_qtune` exports the assertions too. They need no pytest and always
assert, with or without `--qtune`. Each returns an `AssertionResult`, or raises `AssertionError`
with the result as `.qtune_result`. Wrong arguments raise `qtune.errors.ArgumentError`. NaN is
within no limit. `name=` replaces the model's name in reports. [The plugin](../plugin.md) shows them
at work.
"""
_OTHERS_INTRO = "What the assertions take and give."
_METRICS_INTRO = """# Metrics

Distances between a baseline `a` and another result `b` of the same shape, by which assertions,
comparisons and sensitivity tables judge. They compute on float64, complex tensors as real ones with
one more dimension. Empty tensors are "n/a" and ranked last; NaN is the worst.
[numerics.md](../numerics.md#5-metrics) has the rules of ties, zeros and infinities.
"""
_OPTIONS_INTRO = """# Options, markers and fixtures of the pytest plugin

A marker `@pytest.mark.qtune(march="nash-m")` beats the command line, which beats the ini file.
[The plugin](../plugin.md) shows them at work.

## Options
"""


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        write_text(path, text)


if __name__ == "__main__":
    main()
