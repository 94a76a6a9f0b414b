"""link and staged names: programs of several functions."""

from __future__ import annotations

import pytest
import torch

from qtune.bpu.compiler import Hbm, compile, convert, link
from qtune.errors import ArgumentError
from qtune.hbir.export import export
from tests.hbir.prepared import small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    made = []
    for name, scale in (("day", 1.0), ("night", 3.0)):
        bc = convert(export(small_cnn(scale * X), X, name=name, input_descs=name), "nash-e")
        bc[0].desc = f"for {name}"
        made.append((bc, compile(bc, folder / f"{name}.hbo", "nash-e")))
    return made


def test_linked_program_holds_every_function(objects, tmp_path):
    hbm = link([hbo for _, hbo in objects], tmp_path / "both.hbm", desc="camera")

    assert [function.name for function in hbm] == ["day", "night"]
    assert (hbm.desc, hbm.march) == ("camera", "nash-e")
    for index, (bc, hbo) in enumerate(objects):
        assert torch.equal(hbm[index](X), bc[0](X))
        assert torch.equal(hbm[hbo[0].name](X), bc[0](X))
        assert hbm[index].estimate == hbo.estimate
        assert hbm[index].desc == bc[0].desc
    assert not torch.equal(hbm["day"](X), hbm["night"](X))
    with pytest.raises(ArgumentError, match=r"holds the functions day, night; ask one"):
        hbm.memory  # noqa: B018


def test_paths_are_linked_and_descriptions_joined(objects, tmp_path):
    hbm = link([hbo.path for _, hbo in objects], str(tmp_path / "both.hbm"))

    assert hbm.desc == "for day; for night"


def test_link_refuses_equal_names_other_marches_and_files(objects, tmp_path):
    (bc, hbo), _ = objects
    with pytest.raises(ArgumentError, match=r"different names, but day comes several times"):
        link([hbo, hbo], tmp_path / "m.hbm")
    with pytest.raises(ArgumentError, match=r"saved under the suffix \.hbm"):
        link([hbo], tmp_path / "m.hbo")
    with pytest.raises(ArgumentError, match="list of at least one object"):
        link([], tmp_path / "m.hbm")
    for wrong in (None, bc):
        with pytest.raises(ArgumentError, match=r"objects that compile wrote under the suffix"):
            link([wrong], tmp_path / "m.hbm")
    with pytest.raises(ArgumentError, match="desc must be a text, got 3"):
        link([hbo], tmp_path / "m.hbm", desc=3)
    with pytest.raises(ArgumentError, match=r"no function 1\.5; it has: day"):
        hbo[1.5]
    with pytest.raises(ArgumentError, match=r"suffix \.hbo"):
        link([tmp_path / "day.hbm"], tmp_path / "m.hbm")
    other = convert(export(small_cnn(X), X, name="third"), "nash-m")
    wrong = compile(other, tmp_path / "third.hbo", "nash-m")
    with pytest.raises(ArgumentError, match=r"several marches \(.*nash-e.*nash-m\)"):
        link([hbo, wrong], tmp_path / "m.hbm")
    assert not (tmp_path / "m.hbm").exists()


def test_staged_names_and_descriptions_are_saved(objects, tmp_path):
    hbm = link([hbo for _, hbo in objects], tmp_path / "both.hbm")
    hbm.staged_desc = "v2"
    hbm["night"].staged_name = "dusk"
    hbm["day"].staged_desc = "bright"
    hbm["day"].inputs[0].staged_name = "camera"
    hbm["day"].outputs[0].staged_desc = "classes"

    hbm.save_by_staged_info(tmp_path / "new.hbm")

    new = Hbm(tmp_path / "new.hbm")
    assert [function.name for function in new] == ["day", "dusk"]
    assert (new.desc, new["day"].desc, new["dusk"].desc) == ("v2", "bright", "for night")
    assert new["day"].outputs[0].desc == "classes"
    assert torch.equal(new["day"].feed({"camera": X})["_output_0"], hbm["day"](X))
    assert [function.name for function in hbm] == ["day", "night"]  # the open one is as it was
    hbm["night"].staged_name = "day"
    with pytest.raises(ArgumentError, match="day comes several times"):
        hbm.save_by_staged_info(tmp_path / "twice.hbm")
