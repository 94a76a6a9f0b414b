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
    return {k: config.invocation_params.dir / path for k, path in found.items() if path}


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
