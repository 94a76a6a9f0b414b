"""Calibration data: forms, order, and one clear error for each thing that can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug.calibrated import Port
from qtune.onnx_debug.data import CalibrationDataSet

IMAGE = Port("image", (None, 3, 4), np.dtype(np.float32))
LENGTH = Port("length", (1,), np.dtype(np.int64))
BOTH = (IMAGE, LENGTH)


def image(value: float = 0.0, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.full((1, 3, 4), value, dtype)


def write(folder: Path, name: str, arrays: dict[str, Any]) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    for stem, array in arrays.items():
        np.save(folder / name / f"{stem}.npy", array)


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write(tmp_path, "image", {str(i): image(i) for i in range(11)})
    data = CalibrationDataSet(tmp_path, (IMAGE,))
    assert [item["image"][0, 0, 0] for item in data] == list(range(11))
    assert CalibrationDataSet(data, (IMAGE,))[10]["image"][0, 0, 0] == 10


def test_every_form_gives_the_same_items(tmp_path: Path) -> None:
    one = np.ones(1, np.int64)
    write(tmp_path, "image", {"0": image(1), "1": image(2)})
    write(tmp_path, "length", {"0": one, "1": one})
    forms: list[Any] = [
        str(tmp_path),
        {"image": [image(1), image(2)], "length": [one, one]},
        [{"image": image(1), "length": one}, {"image": image(2), "length": one}],
        {"image": tmp_path / "image", "length": [tmp_path / "length/0.npy", one]},
        [(image(1), one), (image(2), one)],
        [{"image": str(tmp_path / f"image/{i}.npy"), "length": one} for i in range(2)],
    ]
    for form in forms:
        data = CalibrationDataSet(form, BOTH)
        assert [float(item["image"].max()) for item in data] == [1.0, 2.0]
        assert data[1]["length"].tolist() == [1]


@pytest.mark.parametrize("kind", [str, Path])
def test_files_of_one_input_may_be_listed(kind: Any, tmp_path: Path) -> None:
    write(tmp_path, "image", {"²": image(1), "b": image(2)})
    data = CalibrationDataSet([kind(tmp_path / f"image/{stem}.npy") for stem in "b²"], (IMAGE,))
    assert [float(item["image"].max()) for item in data] == [2.0, 1.0]
    assert len(CalibrationDataSet(tmp_path, (IMAGE,))) == 2  # a name that is a digit, and no number


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_another_float_type_is_refused_and_not_rounded(dtype: Any) -> None:
    data = CalibrationDataSet([image(1, dtype)], (IMAGE,))
    with pytest.raises(ArgumentError, match=f"{np.dtype(dtype)}, the input 'image' takes float32"):
        data[0]


@pytest.mark.parametrize("given", [{"image": None}, {"image": 1}, {1: [image()]}])
def test_what_holds_no_arrays_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="expected an array|misses image and has 1"):
        CalibrationDataSet(given, (IMAGE,))


def test_a_missing_folder_of_an_input_names_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path, "img", {"0": image()})
    with pytest.raises(ArgumentError, match=r"no folder 'image' for .*'image'; .*folders img"):
        CalibrationDataSet(tmp_path, (IMAGE,))
    with pytest.raises(ArgumentError, match="is no folder; expected .*<input name>/<i>.npy"):
        CalibrationDataSet(tmp_path / "absent", (IMAGE,))
    (tmp_path / "image").mkdir()
    with pytest.raises(ArgumentError, match="image holds no .npy file for the input 'image'"):
        CalibrationDataSet(tmp_path, (IMAGE,))


def test_a_misshapen_file_is_named_with_the_expected_shape(tmp_path: Path) -> None:
    write(tmp_path, "image", {"0": image(), "1": np.zeros((1, 4, 3), np.float32)})
    data = CalibrationDataSet(tmp_path, (IMAGE,))
    assert data[0]["image"].shape == (1, 3, 4)
    with pytest.raises(
        ArgumentError,
        match=r"image/1\.npy has the shape \[1, 4, 3\], the input 'image' takes \[any, 3, 4\]",
    ):
        data[1]


def test_a_wrong_type_is_named(tmp_path: Path) -> None:
    data = CalibrationDataSet([image(0, np.uint8)], (IMAGE,))
    with pytest.raises(ArgumentError, match="item 0 of input 'image' has the dtype uint8.*float32"):
        data[0]


def test_a_broken_file_is_named_and_never_unpickled(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/0.npy").write_bytes(b"nothing")
    np.save(tmp_path / "image/1.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "image/2.npy", np.array(["text"]))
    data = CalibrationDataSet(tmp_path, (IMAGE,))
    for index in range(3):
        with pytest.raises(ArgumentError, match=rf"image/{index}\.npy (is no|holds no)"):
            data[index]


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ArgumentError, match="item 1 of input 'image' holds NaN or infinity"):
        CalibrationDataSet([image(), image(np.nan)], (IMAGE,))[1]


def test_inputs_with_different_numbers_of_items_are_refused() -> None:
    given = {"image": [image()], "length": [np.ones(1, np.int64)] * 2}
    with pytest.raises(ArgumentError, match=r"different numbers of items \(image: 1, length: 2\)"):
        CalibrationDataSet(given, BOTH)


def test_names_that_do_not_fit_are_listed() -> None:
    with pytest.raises(ArgumentError, match="misses length and has size, which the model has not"):
        CalibrationDataSet({"image": [image()], "size": [image()]}, BOTH)
    with pytest.raises(ArgumentError, match="item 0 misses length"):
        CalibrationDataSet([{"image": image()}], BOTH)
    with pytest.raises(ArgumentError, match="got list for a model with the inputs image, length"):
        CalibrationDataSet([image()], BOTH)
    with pytest.raises(ArgumentError, match="item 1: a tuple of 1 for the inputs image, length"):
        CalibrationDataSet([(image(), np.ones(1, np.int64)), (image(),)], BOTH)
    with pytest.raises(ArgumentError, match="it is empty"):
        CalibrationDataSet([], (IMAGE,))


@pytest.mark.parametrize("count", [0, 3, True, 1.0])
def test_data_num_lies_between_one_and_the_number_of_items(count: Any) -> None:
    data = CalibrationDataSet([image(), image()], (IMAGE,))
    with pytest.raises(ArgumentError, match=r"data_num must be 1 to 2"):
        data.count(count)
    assert [data.count(None), len(list(data.first(1)))] == [2, 1]
