"""What the plugin costs a run that does not use it: nothing heavy, nothing visible."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .conftest import CHECKS

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


HEAVY = {"torch", "numpy", "pandas", "onnx", "onnxruntime", "hypothesis", "matplotlib"}
ALONE = ("-p", "no:hypothesispytest", "-p", "no:html", "-p", "no:metadata")
"""Other plugins, which load heavy modules of their own."""


def loaded(folder: Path, *args: str, returns: int = 0) -> dict[str, set[str]]:
    """The modules of each process of a run, ``main`` and the workers."""
    (folder / "conftest.py").write_text(PROBE.replace('"modules.json"', PROCESS_FILE))
    command = [sys.executable, "-m", "pytest", "-q", *ALONE, *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == returns, done.stdout + done.stderr
    files = {path.name.split(".")[1]: path for path in folder.glob("modules.*.json")}
    return {process: set(json.loads(path.read_text())) for process, path in files.items()}


PROCESS_FILE = (
    "'modules.%s.json' % getattr(config, 'workerinput', {'workerid': 'main'})['workerid']"
)


def test_the_flag_alone_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(): pass")
    found = loaded(tmp_path, "--qtune")
    assert found["main"].isdisjoint(HEAVY | {"qtune", "jinja2", "jsonschema", "filelock"})


def test_reports_about_results_of_workers_need_no_torch(tmp_path: Path) -> None:
    """Neither the process that writes them, nor workers whose tests don't use it."""
    (tmp_path / "checks.py").write_text(CHECKS)
    tests = "from checks import check\ndef test_a(): check(True)\ndef test_b(): check(False)\n"
    (tmp_path / "test_a.py").write_text(tests)
    reports = ("--qtune-html=q.html", "--qtune-json=q.json", "--junitxml=junit.xml")
    gates = ("--qtune-gates=atol<=0.1",)
    found = loaded(tmp_path, "--qtune", "-n2", *reports, *gates, returns=1)
    assert set(found) == {"main", "gw0", "gw1"}
    for process, modules in found.items():
        assert modules.isdisjoint(HEAVY), process
    assert all((tmp_path / name).exists() for name in ("q.html", "q.json", "junit.xml"))


def test_a_worker_that_needs_torch_does_not_bring_it_to_the_controller(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a():\n    import torch\n")
    found = loaded(tmp_path, "--qtune", "-n1", "--qtune-json=q.json")
    assert "torch" in found["gw0"]
    assert found["main"].isdisjoint(HEAVY)
