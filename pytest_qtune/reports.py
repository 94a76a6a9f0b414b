"""The files about a run: JSON, and the page made from the same data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_qtune import options

KINDS = ("html", "json")


def paths(config: pytest.Config) -> dict[str, Path]:
    """Where each report goes; relative to where pytest was called, wherever tests went since."""
    found = {kind: options.get(config, kind) for kind in KINDS}
    folder = config.invocation_params.dir
    return {kind: folder / Path(path).expanduser() for kind, path in found.items() if path}


def check(config: pytest.Config) -> None:
    """Refuse paths that can't be written, or that another report has, before anything runs."""
    targets = paths(config)
    if not targets:
        return
    from qtune.report.files import check_folder

    others = {name: config.getoption(name, None) for name in ("xmlpath", "htmlpath")}
    taken = {Path(path).expanduser().absolute() for path in others.values() if path}
    for kind, path in targets.items():
        where = f"qtune: the {kind} report"
        if path.is_dir():
            raise pytest.UsageError(f"{where}: {path} is a folder; give the path of a file")
        if path.absolute() in taken:
            raise pytest.UsageError(f"{where}: another report is written to {path} too")
        check_folder(path.parent, where, pytest.UsageError)
        taken.add(path.absolute())


def write(targets: Mapping[str, Path], data: Mapping[str, Any]) -> None:
    """Write the reports that were asked for; NaN and infinities become strings."""
    from pytest_qtune import summary
    from pytest_qtune.plain import json_ready
    from qtune.report.files import write_text

    ready: Any = json_ready(dict(data))
    if "json" in targets:
        text = json.dumps(ready, indent=1, sort_keys=True, allow_nan=False)
        write_text(targets["json"], text)
    if "html" in targets:
        from qtune.report.run_page import run_page

        write_text(targets["html"], run_page(ready, mark=summary.mark, rank=summary.rank))
