"""The older functional tools: ``get_raw_features`` and ``profile_featuremap``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn.quantized import FloatFunctional

from qtune.errors import AnalysisError, ArgumentError
from qtune.profiler import get_raw_features, profile_featuremap
from qtune.profiler.featuremap import COLUMNS
from qtune.quantization import convert
from qtune.utils import quant_profiler
from tests.analysis.nets import Block, assert_same, calibrated, fingerprint
from tests.profiler.test_statistic import BY_ORDER, BY_RANGE, NOT_FINITE, lines, tags

KEYS = ["module_name", "attr", "data", "scale", "ch_axis", "ff_method"]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.add, self.same = nn.Conv2d(3, 3, 1), FloatFunctional(), nn.Identity()

    def forward(self, x: Tensor, *, shift: Tensor) -> Tensor:
        y = self.add.add(self.conv(x), shift)
        return self.same(self.add.add(y, x))


def features(model: nn.Module, **options: Any) -> list[dict[str, Any]]:
    import qtune

    call = qtune.Inputs(torch.rand(2, 3, 4, 4), shift=torch.ones(1))
    return get_raw_features(model, call, **options)


def test_every_tensor_is_a_dict_with_the_documented_keys() -> None:
    model = Shared().train()
    before = fingerprint(model)
    torch.manual_seed(3)
    x = torch.rand(2, 3, 4, 4)
    torch.manual_seed(3)
    random = torch.get_rng_state()
    found = features(model)
    before["rng"] = torch.get_rng_state()
    assert not torch.equal(random, before["rng"])  # only the example's own draw
    assert_same(before, model)
    assert all(list(feature) == KEYS for feature in found)
    places = [(f["module_name"], f["attr"], f["ff_method"]) for f in found]
    add = [("add", attr, "add") for attr in ("input-0", "input-1", "output")]
    assert places == [
        *(("conv", attr, None) for attr in ("input", "weight", "bias", "output")),
        *add,
        *add,
        ("same", "input", None),
        ("same", "output", None),
    ]
    assert torch.equal(found[0]["data"], x)
    assert torch.equal(found[3]["data"], model.conv(x))
    assert torch.equal(found[5]["data"], torch.ones(1))  # came as a keyword argument


def test_prefixes_types_and_identity_choose() -> None:
    model = Shared().eval()

    def names(**options: Any) -> set[str]:
        return {f["module_name"] for f in features(model, **options)}

    assert names(prefixes=("conv",)) == {"conv"}
    assert names(types=(nn.Identity,)) == {"same"}
    with pytest.raises(AnalysisError, match=r"prefixes \('conv',\) and types \('Identity',\)"):
        names(prefixes=("conv",), types=(nn.Identity,))
    assert names(skip_identity=True) == {"conv", "add"}


def test_a_selection_keeps_the_numbers_that_operators_have_among_all(tmp_path: Path) -> None:
    chosen = features(Shared().eval(), prefixes=("conv", "same"))
    rows = profile_featuremap(chosen, out_dir=tmp_path)
    assert [row[0] for row in rows] == [0] * 4 + [3] * 2


def test_codes_come_where_there_is_a_scale() -> None:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)
    for stage in (model, convert(model)):
        real = get_raw_features(stage, x)
        coded = get_raw_features(stage, x, preserve_int=True, device="cpu")
        for value, codes in zip(real, coded, strict=True):
            if value["scale"] is None:
                assert torch.equal(value["data"], codes["data"])
                continue
            assert codes["data"].dtype == torch.int8
            scale = value["scale"]
            if value["ch_axis"] == 0:
                scale = scale.reshape(-1, *[1] * (value["data"].dim() - 1))
            assert torch.equal(codes["data"] * scale, value["data"])
    weights = [f for f in real if f["attr"] == "weight"]
    assert [(len(f["scale"]), f["ch_axis"]) for f in weights] == [(8, 0), (8, 0), (4, 0)]


def test_the_files_have_the_documented_columns(tmp_path: Path) -> None:
    rows = profile_featuremap(features(Shared()), out_dir=tmp_path)
    text = (tmp_path / "statistic.txt").read_text()
    head, *table = lines(text, BY_ORDER)
    assert tuple(head) == COLUMNS
    assert COLUMNS[:4] == ("Module Index", "Module Name", "Module Type", "Input/Output/Attr")
    calls = ["conv", "add[add]", "add(1)[add]", "same"]
    assert list(dict.fromkeys(row[1] for row in table)) == calls
    assert [row[0] for row in table] == ["0"] * 4 + ["1"] * 3 + ["2"] * 3 + ["3"] * 2
    assert table[0][2] == "<class 'torch.nn.modules.conv.Conv2d'>"
    assert [row[:4] for row in rows[:1]] == [[0, "conv", table[0][2], "input"]]
    assert len(rows) == len(lines(text, BY_RANGE)) - 1
    assert NOT_FINITE not in text
    page = (tmp_path / "statistic.html").read_text()
    assert "<svg" in page
    assert "add(1)[add]" in page
    assert not list(tmp_path.glob("**/events*"))


def test_names_and_types_in_short(tmp_path: Path) -> None:
    found = features(Shared(), use_class_name=True)
    profile_featuremap(found, out_dir=tmp_path, file_name="conv")
    assert {path.name for path in tmp_path.iterdir()} == {"conv.txt", "conv.html"}
    assert lines((tmp_path / "conv.txt").read_text(), BY_ORDER)[1][2] == "Conv2d"


def test_tensorboard_and_scales_per_channel(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    found = get_raw_features(convert(calibrated(Block(), x)), x, prefixes=("head",))
    profile_featuremap(found, True, out_dir=tmp_path)
    assert tags(tmp_path / "tensorboard")["head/weight/channel_3"] == 8
    assert "head/input/channel_0" not in tags(tmp_path / "tensorboard")
    assert "per channel" in (tmp_path / "statistic.txt").read_text()
    options = {"print_per_channel_scale": True, "show_per_channel": True}
    profile_featuremap(found, True, str(tmp_path / "events"), out_dir=tmp_path, **options)
    assert tags(tmp_path / "events")["head/input/channel_7"] == 2
    weight = next(f for f in found if f["attr"] == "weight")
    scales = ", ".join(f"{float(s):.7f}" for s in weight["scale"])
    assert scales in (tmp_path / "statistic.txt").read_text()


def test_nan_and_infinity_are_listed(tmp_path: Path) -> None:
    found = get_raw_features(nn.Sequential(nn.ReLU()), torch.tensor([1.0, float("inf")]))
    profile_featuremap(found, out_dir=tmp_path)
    listed = lines((tmp_path / "statistic.txt").read_text(), NOT_FINITE)[1:]
    assert [row[-2:] for row in listed] == [["0", "1"], ["0", "1"]]
    assert "With NaN or infinity" in (tmp_path / "statistic.html").read_text()


def test_own_lists_of_dicts_work_and_others_are_refused(tmp_path: Path) -> None:
    own = [dict(feature) for feature in features(Shared())]
    profile_featuremap(own, out_dir=tmp_path)
    table = lines((tmp_path / "statistic.txt").read_text(), BY_ORDER)[1:]
    assert table[0][1:4] == ["conv", "", "input"]
    with pytest.raises(ArgumentError, match="a feature lacks data, ff_method"):
        profile_featuremap([{k: 0 for k in KEYS if k not in ("data", "ff_method")}])


def test_they_are_found_under_the_toolchains_path() -> None:
    assert quant_profiler.get_raw_features is get_raw_features
    assert quant_profiler.profile_featuremap is profile_featuremap


def test_one_name_and_one_type_may_be_given_alone() -> None:
    model = Shared().eval()
    names = {f["module_name"] for f in features(model, prefixes="conv", types=nn.Conv2d)}
    assert names == {"conv"}


@pytest.mark.parametrize(
    ("options", "text"),
    [({"types": "Conv2d"}, "classes or functions, got 'Conv2d'"), ({"prefixes": 3}, "text, got 3")],
)
def test_other_names_and_types_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        features(Shared().eval(), **options)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ArgumentError, match="get_raw_features: this machine has no device cuda:99"):
        features(Shared().eval(), device="cuda:99")
    with pytest.raises(ArgumentError, match="expected a device such as 'cpu', got 'gpu'"):
        features(Shared().eval(), device="gpu")


def test_what_is_no_list_of_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected the list .* got None"):
        profile_featuremap(None, out_dir=tmp_path)  # type: ignore[arg-type]
    feature = dict.fromkeys(KEYS) | {"data": 3.0, "ch_axis": -1}
    with pytest.raises(ArgumentError, match="a feature lacks a tensor as data"):
        profile_featuremap([feature], out_dir=tmp_path)
    assert not list(tmp_path.iterdir())
