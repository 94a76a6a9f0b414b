"""docs/onnx-debugger-command.md: its commands run, its tables name every option and column."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest

from qtune.onnx_debug import command
from qtune.onnx_debug.command_options import REQUIRED, SUBCOMMANDS
from qtune.onnx_debug.tensors_numbers import TensorRow

from . import nets

PAGE = Path(__file__).parents[2] / "docs" / "onnx-debugger-command.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.usefixtures("empty_pictures")
def test_its_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(nets.residual(), "calibrated_model.onnx")
    (tmp_path / "calibration_data" / "x").mkdir(parents=True)
    np.save("calibration_data/x/0.npy", nets.data(1)[0])
    (block,) = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S)
    lines = [shlex.split(line) for line in block.splitlines()]
    assert [line[1] for line in lines] == [item.name for item in SUBCOMMANDS]
    for program, *words in lines:
        assert program == "hmct-debugger"
        assert command.main(words) == 0, capsys.readouterr().err
    folders = {path.name for path in (tmp_path / "debug_result").iterdir() if path.is_dir()}
    assert folders == set(re.findall(r"`(\w+)/", TEXT)) - {"calibration_data"}


def test_the_table_has_every_option_with_its_default() -> None:
    for item in SUBCOMMANDS:
        (row,) = re.findall(rf"^\| `{item.name}` \| (.*) \|$", TEXT, re.M)
        expected = []
        for option in item.options:
            flags = option.short or (option.flags[0],)
            default = "" if option.default is REQUIRED else f" ({option.default})"
            expected.append(" or ".join(f"`{f}`" for f in flags) + f" {option.name}{default}")
        assert row == ", ".join(expected)


def test_every_column_is_explained() -> None:
    section = TEXT.partition("## tensor-analysis")[2].partition("## runall")[0]
    for field in fields(TensorRow):
        if not re.fullmatch(r"p\d+(_\d)?", field.name):
            assert f"`{field.name}`" in section
