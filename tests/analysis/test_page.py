"""docs/analysis.md: its code blocks run, one after the other, as one session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from qtune.analysis.compare import TAIL
from qtune.analysis.sensitivity import COLUMNS
from qtune.profiler.metric import Metric

METRICS = ("ATOL", "L1", "MSE", "RTOL", "KL", "COSINE", "SQNR")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "analysis.md"


def test_the_code_blocks_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (tmp_path / "session.py").write_text("\n".join(blocks))
    path = os.pathsep.join([str(PAGE.parents[1]), *filter(None, sys.path)])
    env = {**os.environ, "QTUNE_RUN_DIR": "", "PYTHONPATH": path}
    command = [sys.executable, "-W", "error::DeprecationWarning", "session.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "check" / "model_check_result.txt").exists()


def test_every_column_and_metric_is_described() -> None:
    text = PAGE.read_text()
    missing = [c for c in COLUMNS if f"`{c}_<M>`" not in text]
    missing += [c for c in TAIL if f"`{c}`" not in text and not c.endswith(("_max", "_mean"))]
    missing += [
        m for m in ("ATOL", "L1", "MSE", "RTOL", "KL", "COSINE", "SQNR") if f"`{m}`" not in text
    ]
    assert not missing
    assert Metric.get_metric("ATOL") is Metric.ATOL
