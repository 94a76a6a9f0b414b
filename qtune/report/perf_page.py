"""The page of a program's static estimate, from the data of ``hbm_perf`` (plain values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtune.report.page import Section, Table, Tile, render
from qtune.report.svg import bars

MOST_BARS = 25
MOST_BUFFERS = 40
_WIDTH, _HEIGHT, _ROW = 900, 300, 4

Entry = Mapping[str, Any]


def perf_page(data: Entry) -> str:
    """Render all functions: time and traffic per operator, and the memory plan."""
    functions: Sequence[Entry] = data["functions"]
    sections = [_function(entry) for entry in functions]
    sections.append(_settings(data))
    return render(
        f"{data['model']} on {data['march']}",
        sections,
        subtitle="Static estimate from a roofline; it ranks operators and is no measurement.",
        sortable=True,
        tiles=_tiles(functions),
    )


def _tiles(functions: Sequence[Entry]) -> list[Tile]:
    estimates = [entry["estimate"] for entry in functions]
    arena = max(entry["memory"]["arena_bytes"] for entry in functions)
    constants = sum(entry["memory"]["constant_bytes"] for entry in functions)
    return [
        Tile(_time(sum(item["latency_us"] for item in estimates)), "estimated time"),
        Tile(_count(sum(item["macs"] for item in estimates)), "multiply-adds"),
        Tile(_bytes(sum(item["bytes"] for item in estimates)), "DDR traffic"),
        Tile(_bytes(arena), "activations, peak"),
        Tile(_bytes(constants), "constants"),
    ]


def _function(entry: Entry) -> Section:
    estimate, memory = entry["estimate"], entry["memory"]
    parts = [_operators(estimate), _memory(memory)]
    if len(estimate["function_calls"]) > 1:
        parts.insert(1, _calls(estimate["function_calls"]))
    text = [f"Inputs: {', '.join(entry['inputs'])}.", f"Outputs: {', '.join(entry['outputs'])}."]
    return Section(f"Function {entry['name']}", text=text, sections=parts)


def _operators(estimate: Entry) -> Section:
    operators: Sequence[Entry] = estimate["operators"]
    rows = [
        {
            "operator": item["op"],
            "type": item["type"],
            "time (us)": f"{item['latency_us']:.3f}",
            "share (%)": f"{100 * item['share']:.1f}",
            "multiply-adds": item["macs"],
            "DDR bytes": item["bytes"],
            "bound by": item["bound"],
        }
        for item in operators
    ]
    longest = sorted(operators, key=lambda item: -item["latency_us"])[:MOST_BARS]
    times = {item["op"]: item["latency_us"] for item in longest}
    picture = bars(times, title="The longest operators", x_label="estimated time (us)")
    numeric = ("time (us)", "share (%)", "multiply-adds", "DDR bytes")
    columns = ("operator", "type", *numeric, "bound by")
    table = Table(columns, rows, numeric=numeric, wrap=("operator",))
    return Section("Operators", tables=[table], pictures=[picture])


def _calls(calls: Sequence[Entry]) -> Section:
    rows = [
        {
            "call": index,
            "first operator": item["first"],
            "last operator": item["last"],
            "operators": item["operators"],
            "time (us)": f"{item['latency_us']:.3f}",
        }
        for index, item in enumerate(calls)
    ]
    columns = ("call", "first operator", "last operator", "operators", "time (us)")
    return Section(
        "Function calls", tables=[Table(columns, rows, numeric=("call", "operators", "time (us)"))]
    )


def _memory(memory: Entry) -> Section:
    arena, bound = memory["arena_bytes"], memory["lower_bound_bytes"]
    ratio = f", {arena / bound:.2f} times" if bound else ", against"
    text = [
        f"The activations take {_bytes(arena)}{ratio} the most that is alive at one step "
        f"({_bytes(bound)}). Each buffer starts at a multiple of {memory['alignment']} bytes; "
        f"strategy {memory['strategy']!r}."
    ]
    ports = [
        {
            "argument": item["name"],
            "kind": item["kind"],
            "dtype": item["dtype"],
            "shape": " x ".join(map(str, item["shape"])),
            "strides (bytes)": ", ".join(map(str, item["strides"])),
            "bytes": item["bytes"],
        }
        for item in memory["ports"]
    ]
    columns = ("argument", "kind", "dtype", "shape", "strides (bytes)", "bytes")
    table = Table(columns, ports, numeric=("bytes",), caption="Inputs and outputs")
    return Section("Memory", text=text, tables=[table], pictures=[_arena(memory)])


def _arena(memory: Entry) -> str:
    """Buffers as boxes: steps from left to right, offsets from bottom to top."""
    buffers: Sequence[Entry] = memory["buffers"]
    steps = max((b["last"] for b in buffers), default=0) + 2
    arena = max(memory["arena_bytes"], 1)
    boxes = []
    for index, buffer in enumerate(buffers):
        x = (buffer["first"] + 1) / steps * _WIDTH
        width = max((buffer["last"] - buffer["first"] + 1) / steps * _WIDTH - 0.5, 0.8)
        height = max(buffer["size"] / arena * _HEIGHT, 0.5)
        y = _HEIGHT - buffer["offset"] / arena * _HEIGHT - height
        shade = 205 + 40 * (index % _ROW)
        title = f"{_escape(buffer['name'])}: {buffer['size']} bytes at {buffer['offset']}"
        boxes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="hsl({shade % 360},55%,62%)" stroke="#fff" stroke-width="0.5">'
            f"<title>{title}</title></rect>"
        )
    return (
        f'<svg viewBox="0 -4 {_WIDTH} {_HEIGHT + 26}" role="img" width="100%" '
        f'aria-label="memory plan"><rect x="0" y="0" width="{_WIDTH}" height="{_HEIGHT}" '
        f'fill="#f6f8fa"/>{"".join(boxes)}<text x="0" y="{_HEIGHT + 18}" font-size="13" '
        f'fill="#57606a">Memory plan: execution from left to right, offsets from bottom to top '
        f"(0 to {_bytes(memory['arena_bytes'])}); hover for names.</text></svg>"
    )


def _settings(data: Entry) -> Section:
    machine: Entry = data["functions"][0]["estimate"]["hardware"]
    assumed = set(machine["assumed"])
    rows = [
        {
            "figure": key,
            "value": f"{value:,.0f}",
            "source": "assumption" if key in assumed else "published",
        }
        for key, value in machine.items()
        if key not in ("assumed", "march", "macs_per_cycle")
    ]
    options = [{"option": key, "value": str(value)} for key, value in data["options"].items()]
    text = [f"Compiled with qtune {data['toolkit_version']}. {data['desc']}".strip()]
    return Section(
        "Assumptions and options",
        text=text,
        tables=[
            Table(("figure", "value", "source"), rows, caption=data["march"], numeric=("value",)),
            Table(("option", "value"), options, caption="Options of compile"),
        ],
    )


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def _count(number: float) -> str:
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{number:.0f}{unit}" if not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.2f} G"


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.1f} us"
    return f"{microseconds / 1000:.2f} ms"
