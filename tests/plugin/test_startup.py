"""What the plugin costs a run that does not use it: nothing heavy, nothing visible."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROBE = """
import json, sys

def pytest_unconfigure(config):
    with open("modules.json", "w") as file:
        json.dump(sorted(sys.modules), file)
"""


def modules(folder: Path, *args: str) -> set[str]:
    folder.mkdir()
    (folder / "conftest.py").write_text(PROBE)
    (folder / "test_a.py").write_text("def test_a(): pass")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert "qtune" not in done.stdout
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == [
        "conftest.py",
        "modules.json",
        "test_a.py",
    ]
    return set(json.loads((folder / "modules.json").read_text()))


def test_an_unused_plugin_loads_only_its_own_light_modules(tmp_path: Path) -> None:
    with_plugin = modules(tmp_path / "with")
    without = modules(tmp_path / "without", "-p", "no:qtune")
    extra = {name for name in with_plugin - without if not name.startswith("pytest_qtune")}
    standard = sys.stdlib_module_names
    assert {name for name in extra if name.split(".")[0] not in standard} == set()


def test_the_flag_alone_loads_nothing_heavy(tmp_path: Path) -> None:
    folder = tmp_path / "flag"
    folder.mkdir()
    (folder / "conftest.py").write_text(PROBE)
    (folder / "test_a.py").write_text("def test_a(): pass")
    others = ("-p", "no:hypothesispytest", "-p", "no:html")  # load heavy modules of their own
    command = [sys.executable, "-m", "pytest", "-q", "--qtune", *others]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    loaded = set(json.loads((folder / "modules.json").read_text()))
    assert loaded.isdisjoint({"torch", "numpy", "pandas", "qtune", "jinja2", "onnx"})
