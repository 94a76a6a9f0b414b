"""hbm_perf: the static estimate of a program as a page and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.bpu.hbm import CompiledFunction, Hbm, Program
from qtune.errors import ArgumentError
from qtune.report.files import write_text
from qtune.report.perf_page import perf_page


@dataclass(frozen=True, slots=True)
class PerfReport:
    """Where ``hbm_perf`` wrote its files, and what they say: ``data`` as in the JSON file."""

    html: Path
    json: Path
    data: dict[str, Any]


def hbm_perf(
    model: Hbm | str | Path,
    output_dir: str | Path = ".",
    remote_ip: str | None = None,
    **device_options: Any,
) -> PerfReport:
    """Write ``<program>.html`` and ``<program>.json``: time, traffic and memory per operator.

    ``model``: a program or the path of an ``.hbm`` file. The figures come from the static estimate
    made at compile (``qtune.bpu.estimate``); measuring on a board (``remote_ip``) is not done.
    """
    if remote_ip is not None or device_options:
        wanted = ", ".join([*(["remote_ip"] if remote_ip is not None else []), *device_options])
        raise NotImplementedError(
            f"hbm_perf({wanted}) is not implemented: there is no board behind this emulator; leave "
            "it out for the static estimate"
        )
    if not isinstance(model, (Program, str, Path)):
        raise ArgumentError(f"hbm_perf takes a program or its path, got {type(model).__name__}")
    program = model if isinstance(model, Program) else Hbm(model)
    data = {
        "model": program.path.name,
        "march": program.march,
        "desc": program.desc,
        "toolkit_version": program.toolkit_version,
        "options": program.options,
        "functions": [_function(function) for function in program.functions],
    }
    folder, stem = Path(output_dir), program.path.stem
    text = json.dumps(data, indent=1)
    return PerfReport(
        write_text(folder / f"{stem}.html", perf_page(data)),
        write_text(folder / f"{stem}.json", text),
        json.loads(text),
    )


def _function(function: CompiledFunction) -> dict[str, Any]:
    return {
        "name": function.name,
        "inputs": [str(item) for item in function.inputs],
        "outputs": [str(item) for item in function.outputs],
        "estimate": function.estimate,
        "memory": function.memory,
    }
