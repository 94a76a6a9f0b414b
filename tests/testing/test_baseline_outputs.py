"""``Baseline.outputs``: bits of an integer module, with its scales and the CPU; what a model is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qtune import qint16
from qtune.errors import ArgumentError
from qtune.qconfig.templates import ConvDtypeTemplate, ModuleNameTemplate
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.testing import Stages, output_hash
from qtune.testing.baseline import Baseline
from qtune.testing.baseline_file import BaselineFile, Entry, write

from . import nets

INPUTS = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "__qtune__" / "test_net.json"


@pytest.fixture
def stored(path: Path, stages: Stages) -> Entry:
    baseline = Baseline(path, "key", update="new")
    assert baseline.outputs("bits", stages.quantized_bc, INPUTS).model == "net"
    baseline.save()
    entry = BaselineFile.read(path).get("key", "bits")
    assert entry is not None
    return entry


def test_the_hash_is_stored_with_scales_capability_and_identity(
    stages: Stages, stored: Entry
) -> None:
    assert stored.value["sha256"] == output_hash(stages.quantized_bc, INPUTS)
    assert len(stored.value["scales"]) == 64
    assert stored.environment["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert stored.identity["march"] == "nash-e"
    assert set(stored.identity) == {
        "march", "qconfig", "method", "qat_mode", "consistency_level", "calibration", "inputs",
    }  # fmt: skip


def test_the_same_module_is_equal(path: Path, stages: Stages, stored: Entry) -> None:
    baseline = Baseline(path, "key")
    assert baseline.outputs("bits", stages.quantized_bc, INPUTS).ok
    assert baseline.comparisons[0].status == "equal"


@pytest.mark.parametrize(
    ("same_scales", "capability", "status"),
    [
        (True, "other", "changed"),
        (True, None, "changed"),
        (False, "other", "within"),
        (False, None, "changed"),
    ],
)
def test_other_bits_fail_but_for_other_scales_on_another_cpu(
    path: Path,
    stages: Stages,
    stored: Entry,
    same_scales: bool,
    capability: str | None,
    status: str,
) -> None:
    value = {"sha256": "0" * 64, "scales": stored.value["scales"] if same_scales else "1" * 64}
    changed = {"cpu_capability": capability} if capability else {}
    environment = {**stored.environment, **changed}
    write(path, {"key": {"bits": replace(stored, value=value, environment=environment)}})
    baseline = Baseline(path, "key")
    if status == "changed":
        with pytest.raises(AssertionError, match="baseline: bits: got sha256 "):
            baseline.outputs("bits", stages.quantized_bc, INPUTS)
    else:
        result = baseline.outputs("bits", stages.quantized_bc, INPUTS)
        assert "calibrated on another CPU" in result.table
    assert baseline.comparisons[0].status == status


def test_an_identity_of_ones_own_has_the_march_of_the_module(path: Path, stages: Stages) -> None:
    baseline = Baseline(path, "key", update="new")
    baseline.outputs("bits", stages.quantized_bc, INPUTS, identity={"release": 3})
    baseline.save()
    entry = BaselineFile.read(path).get("key", "bits")
    assert entry is not None
    assert set(entry.identity) == {"release", "march", "inputs"}
    assert entry.identity["march"] == "nash-e"


def test_other_inputs_are_another_identity(path: Path, stages: Stages, stored: Entry) -> None:
    with pytest.raises(AssertionError, match="stale baseline"):
        Baseline(path, "key").outputs("bits", stages.quantized_bc, INPUTS + 1)


def test_only_integer_modules_have_bits_to_keep(path: Path, stages: Stages) -> None:
    baseline = Baseline(path, "key", update="new")
    with pytest.raises(ArgumentError, match="only an integer module keeps its bits"):
        baseline.outputs("qat", stages.qat_bc, INPUTS)
    with pytest.raises(ArgumentError, match="module must be an HBIR module"):
        baseline.outputs("calib", stages.calib, INPUTS)


def test_stages_are_an_identity_that_knows_the_configuration(
    path: Path, stages: Stages, build: Callable[..., Stages]
) -> None:
    baseline = Baseline(path, "key", update="new")
    assert baseline.check("sqnr_db", 30.0, identity=stages).model == "net"
    baseline.save()
    assert Baseline(path, "key").check("sqnr_db", 30.0, identity=stages.calib).ok
    templates = [ModuleNameTemplate({"": qint16}), ConvDtypeTemplate()]
    raised = build(nets.Net, qconfig_setter=QconfigSetter(get_qconfig(), templates))
    with pytest.raises(AssertionError, match=r"qconfig was \w{16}, is now \w{16}"):
        Baseline(path, "key").check("sqnr_db", 30.0, identity=raised)


def test_results_say_what_they_are_about(path: Path, stages: Stages) -> None:
    baseline = Baseline(path, "key", update="new")
    of_module = baseline.outputs("bits", stages.quantized_bc, INPUTS)
    assert of_module.provenance == stages.provenance
    assert str(of_module.artefact).endswith("quantized.bc")
    assert baseline.check("top1", 0.5, identity=stages).provenance == stages.provenance
    own = baseline.check("map", 0.5, identity={"data": "v2", "classes": (1, 2)})
    assert own.provenance == {"data": "v2", "classes": "(1, 2)"}  # texts: it goes into files
    assert baseline.check("speed", 0.5).provenance == {}
