"""``.opinfo`` files: one writer, one reader, loaded without trust."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import AnalysisError
from qtune.profiler import OpInfo, OpRunningInfoManager, read_profile
from tests.profiler.profiled import profiled


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 4)

    def forward(self, pair: dict[str, tuple[Tensor, float]], *, shift: Tensor) -> Tensor:
        x, factor = pair["x"]
        return self.lstm(self.fc(self.fc(x) + shift) * factor)[0]


def run(folder: Path) -> tuple[Twice, Tensor]:
    model, x = Twice().eval(), torch.rand(2, 4)
    profiled(model, folder, {"x": (x, 2.0)}, shift=torch.ones(4))
    return model, x


def test_files_are_in_order_and_load_with_torchs_safe_default(tmp_path: Path) -> None:
    model, x = run(tmp_path)
    paths = sorted(tmp_path.glob("op_infos/*.opinfo"))
    infos = [torch.load(path) for path in paths]
    assert all(isinstance(info, OpInfo) for info in infos)
    names = ["fc", "_generated_add_0", "fc_1", "_generated_mul_0", "lstm", "lstm:1", "lstm:2"]
    assert [info.name for info in infos] == names
    assert [path.name.partition("_")[0] for path in paths] == [f"{i:04d}" for i in range(7)]
    fc, add, again, mul, lstm, state, _ = infos
    assert torch.equal(fc.output[0], model.fc(x))
    assert torch.equal(fc.input[0], x)
    assert torch.equal(fc.parameters["weight"], model.fc.weight)
    assert torch.equal(add.input[1], torch.ones(4))
    assert (again.owner, again.module) == ("fc", "fc")
    assert mul.input[1] == 2.0
    assert (state.result, state.input, state.parameters) == (1, [], {})
    assert len(lstm.input) == 1


def test_checksums_are_left_out_of_these_files_only(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    run(tmp_path)
    assert torch.serialization.get_crc32_options() is before
    torch.save(torch.ones(3), tmp_path / "own.pt")
    with zipfile.ZipFile(tmp_path / "own.pt") as archive:
        assert archive.testzip() is None


def test_a_folder_is_read_as_an_observation(tmp_path: Path) -> None:
    model, x = run(tmp_path)
    for folder in (tmp_path, str(tmp_path / "op_infos")):
        records = read_profile(folder).records
        assert list(records)[:3] == ["fc", "_generated_add_0", "fc_1"]
        record = records["fc_1"]
        assert (record.owner, record.op, record.dtype) == ("fc", "linear", "torch.float32")
        assert record.op_type == "torch.nn.modules.linear.Linear"
        assert torch.equal(record.value, model.fc(model.fc(x) + 1))
        assert record.input_shapes == ((2, 4),)
        assert records["lstm:1"].owner == "lstm"


def test_another_run_in_the_same_folder_replaces_the_first(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "op_infos" / "notes.txt").write_text("mine")
    profiled(nn.ReLU(), tmp_path, torch.rand(2))
    assert list(OpRunningInfoManager(tmp_path)) == ["_generated_relu_0"]
    assert (tmp_path / "op_infos" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps(print)])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "op_infos"
    folder.mkdir()
    (folder / "0000_fc.opinfo").write_bytes(content)
    with pytest.raises(AnalysisError, match=r"0000_fc.opinfo can't be read"):
        read_profile(tmp_path)


def test_memory_stays_small_beside_what_is_written(tmp_path: Path) -> None:
    """Values that the model has dropped are let go while it runs."""
    alive: list[int] = []

    class Count(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            alive.append(sum(ref() is not None for ref in refs))
            return x

    refs: list[object] = []

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = Count()

        def forward(self, x: Tensor) -> Tensor:
            import weakref

            for _ in range(20):
                x = x + 1
                refs.append(weakref.ref(x))
                x = self.count(x)
            return x

    with torch.no_grad():
        profiled(Chain(), tmp_path, torch.rand(4))
    assert max(alive) <= 4
