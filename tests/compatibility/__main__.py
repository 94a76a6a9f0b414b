"""``python -m tests.compatibility``: this folder's suite in several environments, from scratch.

An environment is a venv with a few packages of its own; all others come from the environment that
runs this, behind its own on the path. So pytest 8.0 is tested without installing torch again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("qtune", "pytest_qtune")


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed in front of the packages of the calling environment."""

    name: str
    install: str
    requirements: str | None = None


ENVIRONMENTS = (
    Environment("oldest versions, wheel", "wheel", "oldest.txt"),
    Environment("oldest versions, editable", "editable", "oldest.txt"),
    Environment("newest versions, wheel", "wheel"),
)
"""The newest versions with an editable install are those that ran all other tests."""


def main() -> int:
    """Build every environment, run the suite in it, print one line each; 1 if any failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="qtune-compatibility-") as name:
        work = Path(name)
        source = copy_of_source(work / "source")
        wheel = build_wheel(source, work / "wheel")
        for index, environment in enumerate(ENVIRONMENTS):
            start = time.perf_counter()
            python = make(environment, work / str(index), source, wheel)
            ok = run_suite(environment, python, work, source)
            seconds = time.perf_counter() - start
            print(f"{environment.name}: {'passed' if ok else 'FAILED'} ({seconds:.0f} s)")
            failed += [] if ok else [environment.name]
    return 1 if failed else 0


def copy_of_source(target: Path) -> Path:
    """What is installed is built from a copy: setuptools leaves files beside its source."""
    target.mkdir()
    for package in PACKAGES:
        leave_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, target / package, ignore=leave_out)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, target)
    return target


def build_wheel(source: Path, folder: Path) -> Path:
    """The wheel that a user would install."""
    pip("wheel", "--no-deps", *isolation(), "--wheel-dir", str(folder), str(source))
    shutil.rmtree(source / "build")
    (wheel,) = folder.glob("*.whl")
    return wheel


def isolation() -> tuple[str, ...]:
    """Build with the setuptools that is here; where there is none, pip fetches one."""
    try:
        import setuptools  # noqa: F401
    except ImportError:
        return ()
    return ("--no-build-isolation",)


def make(environment: Environment, folder: Path, source: Path, wheel: Path) -> Path:
    """Create the venv; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    behind = Path(sysconfig.get_path("purelib"))
    inside = folder / behind.relative_to(sys.prefix)
    (inside / "behind.pth").write_text(f"{behind}\n")
    if environment.requirements:
        pip("install", "--no-deps", "-r", str(HERE / environment.requirements), python=python)
    what = ("-e", str(source)) if environment.install == "editable" else (str(wheel),)
    pip("install", "--no-deps", *isolation(), *what, python=python)
    return python


def pip(*args: str, python: Path | None = None) -> None:
    """Call pip of this environment, for another one if ``python`` is given."""
    other = () if python is None else ("--python", str(python))
    command = [sys.executable, "-m", "pip", *other, *args, "-q", "--disable-pip-version-check"]
    subprocess.run(command, check=True)


def run_suite(environment: Environment, python: Path, work: Path, source: Path) -> bool:
    """Run a copy of this folder, far from the source: it must import what was installed."""
    suite = work / f"suite {python.parent.parent.name}"
    shutil.copytree(HERE, suite / "compatibility", ignore=shutil.ignore_patterns("__pycache__"))
    (suite / "conftest.py").write_text('pytest_plugins = ["pytester"]\n')
    (suite / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    installed = source if environment.install == "editable" else python.parent.parent
    what = {"kind": environment.install, "folder": str(installed), "source": str(source)}
    env = {**os.environ, "QTUNE_EXPECTED_INSTALL": json.dumps(what)}
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):  # each process would compile all of it
        env.pop(name, None)
    return subprocess.run(suite_command(python), cwd=suite, env=env, check=False).returncode == 0


def suite_command(python: Path) -> Sequence[str | Path]:
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "-rs")
    return [python, "-m", "pytest", *options, "compatibility/test_workflow.py"]


if __name__ == "__main__":
    sys.exit(main())
