"""Where models, weights and inputs come from, and what is said where they don't fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from .conftest import Run, call

X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def cases(run: Run, data: str, *more: str) -> int:
    done = run(*call("compare", "nets:make", "--json", *more, data=data))
    assert done.status == 0, done.err
    count: int = done.json["result"]["outputs"][0]["cases"]
    return count


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.pt", X, 5),
        ("x.pt", [X[:2], X[2:]], 2),
        ("x.pt", [(X[:2], torch.zeros(2)), (X[2:], torch.zeros(3))], 2),
        ("x.pt", {"x": X, "label": torch.zeros(5)}, 5),
        ("x.npy", X.numpy(), 5),
        ("x.npz", {"x": X.numpy(), "label": np.zeros(5)}, 5),
    ],
)
def test_files(run: Run, folder: Path, name: str, content: object, expected: int) -> None:
    if name.endswith(".pt"):
        torch.save(content, name)
    elif isinstance(content, dict):
        np.savez(name, **content)
    else:
        np.save(name, np.asarray(content))
    assert cases(run, name) == expected


def test_tensors_are_cut_and_items_counted(run: Run, folder: Path) -> None:
    torch.save(X, "x.pt")
    assert cases(run, "x.pt", "--batch", "2") == 3
    assert cases(run, "x.pt", "--batch", "2", "--steps", "1") == 1
    assert cases(run, "nets:lazily", "--steps", "3") == 3


def test_an_object_and_a_used_up_iterator(run: Run, folder: Path) -> None:
    (folder / "objects.py").write_text(
        "import torch\nfrom nets import Net\nnet = Net().eval()\n"
        "once = iter([torch.randn(1, 3, 8, 8) for _ in range(3)])\n"
    )
    done = run(*call("compare", "objects:net", "--json", data="objects:once"))
    assert done.json["result"]["outputs"][0]["cases"] == 3


def test_lazily_drawn_data_are_the_same_in_every_run(run: Run) -> None:
    words = call("compare", "nets:make", "--json", data="nets:lazily")
    first = run(*words).json["result"]
    assert run(*words).json["result"] == first
    assert run(*words, "--seed", "1").json["result"] != first


def test_random_data_say_so(run: Run) -> None:
    done = run("check", "nets:make", "--random", "2x3x8x8", "--march", "nash-e", "--json")
    assert done.json["data"] == "random numbers, 8 times 2x3x8x8"


def test_shapes_for_too_many_arguments_are_told_as_shapes(run: Run) -> None:
    done = run("check", "nets:make", "--random", "1,3,8,8", "--march", "nash-e")
    assert done.status == 2
    assert "1,3,8,8 are the shapes of 4 arguments, but forward takes (x)" in done.err
    assert done.err.rstrip().endswith("has x between its sizes: 1x3x8x8")
    done = run("check", "nets:make", "--random", "1x3x8x8,4", "--march", "nash-e")
    assert "1x3x8x8,4 are the shapes of 2 arguments" in done.err
    assert "between its sizes" not in done.err
    assert "Inputs" not in done.err


def test_a_file_is_a_module_once(run: Run, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "beside.py").write_text("SIZE = 3\n")
    (inner / "nets.py").write_text(
        "import torch\nfrom torch import nn\nfrom beside import SIZE\nloads = []\n"
        "def make():\n    return nn.Sequential(nn.Conv2d(SIZE, 2, 1))\n"
        "def data():\n    loads.append(1)\n    return [torch.ones(len(loads), SIZE, 4, 4)]\n"
    )
    done = run("check", "inner/nets.py:make", "--data", "inner/nets.py:data", "--march", "nash-e")
    assert done.status == 0, done.err
    assert cases(run, "nets:batches") == 4  # the other nets is still the other one


def test_weights_and_calibrated_states(run: Run, folder: Path) -> None:
    import nets  # type: ignore[import-not-found]

    torch.manual_seed(5)
    net = nets.Net()
    torch.save({"state_dict": net.state_dict()}, "w.pt")
    words = call("compare", "nets:make", "--checkpoint", "w.pt", "--json")
    found = run(*words, "--save-calibrated", "c.pt").json["result"]
    assert found != run(*call("compare", "nets:make", "--json")).json["result"]
    (folder / "none.py").write_text("def data():\n    raise ValueError('not needed')\n")
    again = run(*words, "--calibrated", "c.pt", "--seed", "0").json
    assert again["result"] == found
    assert again["calibration"] == "c.pt (a state dict)"


def test_other_calibration_data(run: Run, folder: Path) -> None:
    torch.save([4 * X], "wide.pt")
    words = call("compare", "nets:make", "--json")
    done = run(*words, "--calibration-data", "wide.pt")
    assert done.json["calibration"] == "wide.pt"
    scales = [row["qscale"] for row in done.json["result"]["operators"]]
    usual = [row["qscale"] for row in run(*words).json["result"]["operators"]]
    assert scales[0] > 2 * usual[0]


@pytest.mark.parametrize("name", ["mse", "percentile", "kl"])
def test_observers(run: Run, name: str) -> None:
    assert run(*call("check", "nets:make", "--observer", name)).status == 0


WRONG = [
    (("nosuch:make",), "MODEL: no module 'nosuch', neither in "),
    (("nets.make",), "MODEL: expected module:name or path/to/file.py:name, such as nets.py:make"),
    (("none.py:make",), "MODEL: there is no file none.py"),
    (("odd:number",), "MODEL: odd:number returned an int; expected a torch.nn.Module"),
    (("odd:fails",), "MODEL: odd:fails raised RuntimeError: no weights (odd.py:6, in deep)"),
    (("q.bc",), "MODEL: q.bc is a .bc file; this needs the float model"),
    (("nets:make", "--data", "broken:x"), "--data: importing broken raised ModuleNotFoundError: "),
    (("nets:make", "--data", "odd:nothing"), "--data: odd:nothing gives no item"),
    (("nets:make", "--data", "odd:number"), "--data: expected an iterable of inputs but got an in"),
    (("nets:make", "--data", "odd:text"), "--data: batch 0: no tensor among the example inputs"),
    (("nets:make", "--data", "odd:double"), "--data: item 0 of odd:double is float64 and the mod"),
    (("nets:make", "--data", "odd:channels"), "expected input[1, 4, 8, 8] to have 3 channels"),
    (("nets:make", "--data", "odd:uneven"), "on batch 1 of the calibration, by model(Tensor["),
    (("nets:make", "--data", "none.npy"), "--data: there is no file none.npy"),
    (("nets:make", "--data", "nets.npz"), "--data: nets.npz can't be read"),
    (("nets:make", "--data", "nets.pt"), "--data: nets.pt holds objects that torch's safe default"),
    (("nets:make", "--data", "uneven.pt"), "--data: a dict must hold tensors with the same number"),
    (("nets:make", "--data", "label.pt"), "--data: a dict must hold tensors with the same number"),
    (("nets:make", "--data", "number.pt"), "--data: a tensor must have a first dimension"),
    (("nets:make", "--march", "nash"), "--march: unknown march 'nash'; choose one of: bernoulli2"),
    (("nets:make", "--observer", "max"), "--observer: unknown 'max'; choose one of: min_max, "),
    (("nets:make", "--int16", "cnv1"), "--int16 cnv1: no operator or module has this name; close"),
    (("nets:make", "--checkpoint", "uneven.pt"), "--checkpoint: uneven.pt does not fit the model"),
    (("nets:make", "--checkpoint", "parallel.pt"), "save model.module.state_dict()"),
    (("nets:make", "--checkpoint", "wrapped.pt"), "Its entry 'net' is a state dict: save that"),
    (("nets:make", "--data", "damaged"), "--data: calibration data: damaged/x/0.npy is no .npy"),
    (("nets:make", "--out-dir", "nets.py"), "--out-dir: nets.py can't be a folder, "),
    (("nets:make", "--out-dir", "nets.py/a/b"), "nets.py is a file"),
    (("nets:make", "--data", "odd:ODD"), "odd has no 'ODD'; it has: number, deep, fails, "),
    (("nets:make", "--calibrated", "w.pt"), "--calibrated: w.pt does not fit the model: "),
    (("nets:make", "--dtypes", "w.txt"), "LoadFromFileTemplate: w.txt does not exist"),
]
ODD = """
import torch
def number():
    return 3
def deep():
    raise RuntimeError("no\\n   weights")
def fails():
    deep()
def nothing():
    return []
def text():
    return ["a"]
def double():
    return [torch.ones(1, 3, 8, 8, dtype=torch.float64)]
def channels():
    return [torch.ones(1, 4, 8, 8)]
def uneven():
    return [torch.ones(1, 3, 8, 8), torch.ones(1, 4, 8, 8)]
"""


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_what_does_not_fit_is_one_clear_line(
    run: Run, folder: Path, words: tuple[str, ...], message: str
) -> None:
    import nets

    (folder / "odd.py").write_text(ODD)
    (folder / "broken.py").write_text("import nosuchthing\n")
    torch.save(nets.Net().state_dict(), "w.pt")
    torch.save({"x": X, "y": X[:2]}, "uneven.pt")
    torch.save({"x": X, "label": torch.tensor(3)}, "label.pt")
    torch.save(torch.tensor(3), "number.pt")
    torch.save({f"module.{k}": v for k, v in nets.Net().state_dict().items()}, "parallel.pt")
    torch.save({"epoch": 3, "net": nets.Net().state_dict()}, "wrapped.pt")
    (folder / "damaged" / "x").mkdir(parents=True)
    (folder / "damaged" / "x" / "0.npy").write_text("no array")
    (folder / "nets.npz").write_text("no archive")
    (folder / "nets.pt").write_text("no archive")
    more = () if "--data" in words else ("--data", "nets:batches")
    more += () if "--march" in words else ("--march", "nash-e")
    done = run("check", *words, *more, "-q")
    assert done.status == 2, done.out
    assert message in done.err
    lines = [line for line in done.err.splitlines() if line != "the factory prints"]
    assert len(lines) == 1


def test_the_march_may_come_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("check", "nets:make", "--data", "nets:batches", "--json")
    assert "no march is given; pass --march or set QTUNE_MARCH; choose one" in run(*words).err
    monkeypatch.setenv("QTUNE_MARCH", "nash-m")
    assert run(*words).json["march"] == "nash-m"
    assert run(*words, "--march", "nash-p").json["march"] == "nash-p"
    monkeypatch.setenv("QTUNE_MARCH", "mars")
    assert "QTUNE_MARCH: unknown march 'mars'" in run(*words).err
