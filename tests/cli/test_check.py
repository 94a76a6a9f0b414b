"""``qtune check``: findings, what fails, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run, call

UNKNOWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return torch.special.i0(self.conv(x))
"""
PARTLY = """
from qtune import qint8
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.quantization.qconfig_setter import ModuleNameTemplate

def setter():
    return QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint8, "conv2": None})])
"""
ELU = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ELU(), nn.Flatten(), nn.Linear(144, 3))
"""


def test_a_sound_model_passes(run: Run) -> None:
    done = run(*call("check", "nets:make"))
    assert done.status == 0
    assert "The structure is as it should be." in done.out
    assert "ok   --fail-on unfused: got 0, limit 0" in done.out


def test_findings_are_named_and_fail(run: Run) -> None:
    done = run(*call("check", "nets:Shared", "--json"))
    assert done.status == 1
    findings = done.json["result"]["findings"]
    assert findings["shared"] == ["relu1: 2 calls"]
    assert findings["unused"] == ["spare"]
    assert [line.partition(":")[0] for line in findings["unfused"]] == [
        "conv1 + relu1",
        "conv2 + relu1",
    ]
    failed = {gate["gate"]: gate["value"] for gate in done.json["gates"] if not gate["ok"]}
    assert failed == {"--fail-on unfused": 2, "--fail-on shared": 1, "--fail-on unused": 1}


@pytest.mark.parametrize(
    ("kinds", "status"), [("none", 0), ("march", 0), ("march,shared", 1), ("unused", 1)]
)
def test_the_user_says_what_fails(run: Run, kinds: str, status: int) -> None:
    assert run(*call("check", "nets:Shared", "--fail-on", kinds)).status == status


def test_operators_that_stay_float_are_a_finding(run: Run, folder: Path) -> None:
    (folder / "partly.py").write_text(PARTLY)
    words = call("check", "nets:make", "--qconfig", "partly:setter")
    assert run(*words).status == 0
    done = run(*words, "--json", "--fail-on", "float")
    assert done.status == 1
    assert [line.partition(":")[0] for line in done.json["result"]["findings"]["float"]] == [
        "conv2",
        "relu2",
    ]


def test_everything_that_the_march_lacks_is_a_finding(run: Run, folder: Path) -> None:
    (folder / "elu.py").write_text(ELU)
    words = ("check", "elu:make", "--random", "1x3x8x8", "--steps", "1", "--json", "--march")
    done = run(*words, "bernoulli2")
    assert done.status == 1
    found = done.json["result"]["findings"]
    assert [line[:7] for line in found["march"]] == ["1 (elu)", "3 (line"]
    assert found["march"][0].endswith(": bernoulli2 has no elu")
    assert run(*words, "nash-e").status == 0


def test_what_can_not_be_exported_is_a_finding(run: Run, folder: Path) -> None:
    (folder / "unknown.py").write_text(UNKNOWN)
    done = run(*call("check", "unknown:Net", "--json"))
    found = done.json["result"]["findings"]["march"]
    assert (done.status, len(found)) == (1, 1)
    assert found[0].startswith("_generated_i0_0 (torch.special.i0) (unknown.py:10): no operator")


def test_odd_configurations_are_a_finding(run: Run) -> None:
    done = run(*call("check", "nets:Shared", "--int16", "conv1", "--fail-on", "config", "--json"))
    assert done.status == 1
    assert any("qint16" in line for line in done.json["result"]["findings"]["config"])


def test_files_are_written_whole_and_named(run: Run, folder: Path) -> None:
    done = run(*call("check", "nets:make", "--json", "--out-dir", "out"))
    names = ["out/model_check_result.txt", "out/march_check.json", "out/qtune_check.json"]
    assert done.json["files"] == names
    assert json.loads(Path(names[2]).read_text()) == done.json
    assert sorted(p.name for p in (folder / "out").iterdir()) == [
        "march_check.json",
        "model_check_result.txt",
        "qtune_check.json",
    ]
    assert "Each layer out qconfig:" in (folder / "out" / "model_check_result.txt").read_text()
    content = json.loads((folder / "out" / "march_check.json").read_text())
    assert content["violations"] == []
    assert {item["backend"] for item in content["items"]} == {"bpu", "vpu"}
    names = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert names == {"nets.py", "out"}  # prepare leaves nothing of its own
