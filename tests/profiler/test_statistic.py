"""``statistic.txt`` and histograms of a profiler."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from qtune.errors import AnalysisError
from qtune.profiler import HbirModelProfiler, OpRunningInfoManager
from qtune.profiler.histograms import add_histogram, event_writer
from qtune.profiler.statistic import BY_ORDER, BY_RANGE, NOT_FINITE
from qtune.quantization import convert, hbdk4
from tests.analysis.nets import Block, calibrated
from tests.profiler.profiled import profiled

COLUMNS = "Index Op.Name Mod.Name Attr Dtype Scale Min Max Mean Var Shape".replace(".", "_").split()


def lines(text: str, title: str) -> list[list[str]]:
    """The cells of the table behind ``title``."""
    table = text.split(title + "\n")[1].split("\n")
    end = next((i for i, line in enumerate(table) if line.startswith("In order")), len(table))
    rows = [line for line in table[:end] if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def test_the_table_has_the_columns_and_numbers_of_the_document(tmp_path: Path) -> None:
    x = torch.tensor([[0.5, -1.0], [0.25, 2.0]])
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
    table = profiled(model, tmp_path, x).table()
    text = (tmp_path / "statistic.txt").read_text()
    assert text == f"{table}\n"
    head, first, *_ = lines(text, BY_ORDER)
    assert [name.replace(" ", "_") for name in head] == COLUMNS
    wanted = ["-1.0000000", "2.0000000", "0.4375000", f"{float(x.var()):.7f}"]
    linear = ["0", "torch.nn.modules.linear.Linear", "0"]
    assert first == [*linear, "input", "torch.float32", "", *wanted, "torch.Size([2, 2])"]
    assert text.startswith(f"{BY_ORDER}\n+-")
    attrs = [(row[0], row[3]) for row in lines(text, BY_ORDER)[1:]]
    assert attrs == [
        *(("0", attr) for attr in ("input", "weight", "bias", "output")),
        *(("1", attr) for attr in ("input", "output")),
    ]
    assert NOT_FINITE not in text
    assert table


def test_the_second_table_is_sorted_by_range(tmp_path: Path) -> None:
    table = profiled(Block().eval(), tmp_path, torch.rand(1, 3, 8, 8)).table()
    rows = lines(str(table), BY_RANGE)[1:]
    ranges = [float(row[7]) - float(row[6]) for row in rows]
    assert ranges == sorted(ranges, reverse=True)
    assert len(rows) == len(table.rows)


def test_nan_and_infinity_have_a_table_of_their_own(tmp_path: Path) -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    table = profiled(Log(), tmp_path, torch.tensor([1.0, 0.0, -1.0])).table()
    assert not table
    (row,) = lines((tmp_path / "statistic.txt").read_text(), NOT_FINITE)[1:]
    assert row[-2:] == ["1", "1"]
    assert row[3] == "output"
    assert math.isnan(table.by_range()[0].tensor.min)


def test_scales_and_dtypes_follow_the_values(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    rows = profiled(calibrated(Block(), x), tmp_path, x).table().rows
    found = {(row.module, row.tensor.attr): row.tensor for row in rows}
    assert found["_input_0_quant", "input"].scale is None
    assert found["_input_0_quant", "output"].dtype == "qint8"
    assert found["stem.0", "input"].scale == found["_input_0_quant", "output"].scale
    assert found["stem.0", "weight"].dtype == "torch.float32"  # as the document prints it
    assert found["", "input-1"].dtype == "qint8"  # the second operand of x + y
    converted = profiled(convert(calibrated(Block(), x)), tmp_path / "int", x).table()
    assert "per channel" in str(converted)


def test_prefixes_types_and_stack_choose_and_add(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)
    seen = profiled(model, tmp_path, x)
    assert {row.module for row in seen.table(prefixes=("stem",)).rows} == {
        "stem.0",
        "stem.1",
        "stem.2",
    }
    convs = seen.table(tmp_path / "elsewhere", types=(nn.Conv2d,), with_stack=True)
    assert [row.index for row in convs.rows if row.tensor.attr == "output"] == [1, 4]
    head, first, *_ = lines((tmp_path / "elsewhere" / "statistic.txt").read_text(), BY_ORDER)
    assert head[-1] == "Stack"
    assert first[-1].startswith("nets.py:")
    both = seen.table(prefixes=("stem",), types=(nn.Conv2d,)).rows
    assert {row.module for row in both} == {"stem.0"}
    with pytest.raises(AnalysisError, match=r"no operator fits types \('LSTM',\)"):
        seen.table(types=(nn.LSTM,))


def tags(folder: Path) -> dict[str, float]:
    """Tag -> number of values, read back from the event files."""
    events = EventAccumulator(str(folder), size_guidance={"histograms": 0})
    events.Reload()
    names = events.Tags()["histograms"]
    return {name: events.Histograms(name)[0].histogram_value.num for name in names}


def test_histograms_hold_every_tensor(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    seen = profiled(Block().eval(), tmp_path, x)
    assert seen.tensorboard() == tmp_path / "tensorboard"
    found = tags(tmp_path / "tensorboard")
    assert found["stem.0/input"] == x.numel()
    assert found["stem.0/weight"] == 8 * 3 * 9
    assert found["_generated_add_0/input-1"] == 2 * 8 * 8 * 8
    assert not any("channel" in tag for tag in found)
    seen.tensorboard(prefixes=("stem.0",), force_per_channel=True)
    found = tags(tmp_path / "tensorboard")
    assert {tag.split("/")[0] for tag in found} == {"stem.0"}
    seen.tensorboard(tmp_path / "by_type", types=nn.Linear)
    assert {tag.split("/")[0] for tag in tags(tmp_path / "by_type" / "tensorboard")} == {"head"}
    with pytest.raises(AnalysisError, match=r"prefixes \('haed',\); .* for example: head"):
        seen.table(prefixes="haed")
    assert found["stem.0/output/channel_7"] == 2 * 8 * 8
    assert found["stem.0/weight/channel_0"] == 3 * 9
    assert "stem.0/input/channel_3" not in found


def test_values_beyond_the_bins_of_tensorboard_are_counted(tmp_path: Path) -> None:
    with event_writer(tmp_path) as writer:
        add_histogram(writer, "all", torch.tensor([3e38, -3e38]))
        add_histogram(writer, "some", torch.tensor([1e30, 1.0, torch.inf]))
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    for tag in ("all", "some"):
        found = events.Histograms(tag)[0].histogram_value
        assert sum(found.bucket) == found.num == 2


def test_earlier_histograms_stay_until_new_ones_are_whole(tmp_path: Path) -> None:
    def write(error: BaseException | None) -> None:
        with event_writer(tmp_path) as writer:
            add_histogram(writer, "conv/output", torch.rand(3))
            if error is not None:
                raise error

    write(None)
    (first,) = tmp_path.iterdir()
    with pytest.raises(KeyboardInterrupt):
        write(KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == [first]
    write(None)
    (second,) = tmp_path.iterdir()
    assert second != first


def test_what_has_a_scale_for_each_channel_is_shown_per_channel(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    seen = profiled(convert(calibrated(Block(), x)), tmp_path, x)
    seen.tensorboard(tmp_path / "other")
    found = tags(tmp_path / "other" / "tensorboard")
    assert found["stem.2/weight/channel_7"] == 3 * 9
    assert "stem.2/output/channel_0" not in found


def test_values_are_those_of_the_operator(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 2.0, 4.0, math.inf]])
    qat = profiled(nn.Sequential(nn.ReLU()), tmp_path, x)
    qat.tensorboard()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    value = events.Histograms("0/output")[0].histogram_value
    assert (value.min, value.max, value.sum, value.num) == (1.0, 4.0, 7.0, 3.0)


def test_hbir_histograms(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    qat = hbdk4.export(calibrated(Block(), x), x)
    with HbirModelProfiler(qat, tmp_path) as profiler:
        qat[0](x)
    profiler.get_info_manager.tensorboard()
    assert tags(tmp_path / "tensorboard")["stem.0/input"] == x.numel()


def test_without_tensorboard_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = profiled(nn.ReLU(), tmp_path, torch.rand(2))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(AnalysisError, match=r"pip install 'qtune\[tensorboard\]'"):
        seen.tensorboard()


def test_a_folder_without_a_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="holds no op_infos of a profiler"):
        OpRunningInfoManager(tmp_path)
