"""numerics.md section 6: equal bits on every instruction set, each in a process of its own.

The integer models of the registry's operators are made once, with NumPy's results; each process
runs them with its fast kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qtune import march
from qtune.arith_fast.capability import INT8_SWITCH
from qtune.arith_fast.native import engine
from qtune.bpu.convert import convert
from qtune.dtype import qint8, qint16
from qtune.ops.registry import specs
from qtune.ops.spec import OpSpec, Rule
from qtune.quantization import FakeQuantState, set_fake_quantize
from qtune.quantization.hbdk4 import export
from tests.properties.harness import build, prepared_model

TABLES = ("sigmoid", "exp")
"""Of the operators that are one table each, these two: all run the same kernel."""


def entries() -> list[OpSpec]:
    """Operators with integer kernels of their own."""
    found = specs().values()
    return [e for e in found if e.rule not in (Rule.TABLE, Rule.DECOMPOSED) or e.name in TABLES]


def recorded(entry: OpSpec, dtype: Any) -> tuple[Any, ...]:
    """Name, file, inputs and NumPy's results of one sampled call."""
    model, data = build(entry, 3)
    prepared = prepared_model(model, data, dtype)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        prepared(*data)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    module = convert(export(prepared, data))
    feed = {item.name: x for item, x in zip(module[0].inputs, data, strict=True)}
    return f"{entry.name} {dtype}", module.to_bytes(), feed, module[0].run(feed, "reference")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("isa") / "models.pt"
    with pytest.MonkeyPatch.context() as patch, march.march("nash-e"):
        patch.setenv("QTUNE_RUN_DIR", str(path.parent))
        kinds = (qint8, qint16)
        torch.save([recorded(entry, kinds[i % 2]) for i, entry in enumerate(entries())], path)
    return path


@pytest.mark.parametrize("switch", ["", "off"], ids=["compiled", "torch"])
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "AVX2_VNNI", "DEFAULT"])
def test_every_instruction_set_gives_numpys_bits(
    isa: str, switch: str, models: Path, request: pytest.FixtureRequest
) -> None:
    """Pairs of byte products saturate at 16 bits without VNNI: those kernels must not be used."""
    if switch == "off" and isa == "DEFAULT":
        pytest.skip("what this process runs in every other test")
    # torch's own operators run the models of the registry on one instruction set, sums on all
    recordings = [] if switch == "off" and isa != "AVX2" else [str(models)]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, engine.SWITCH: switch}
    environment.pop(INT8_SWITCH, None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.arith_fast.isa_run", *recordings],
        env=environment,
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["sums"] == []
    assert result["models"] == []
    if isa in ("AVX2", "AVX512_CORE"):
        assert result["int8"] is False
        assert "vnni" not in result["kernels"]
    if isa.startswith("AVX2") and result["kernels"] != "off":
        assert result["kernels"].startswith("llvm-256")
