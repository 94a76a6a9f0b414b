"""Positional calls in the order of the document, which begins with ``save_dir``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug.accumulated import plot_acc_error
from qtune.onnx_debug.channels import get_channelwise_data_distribution
from qtune.onnx_debug.distribution import plot_distribution

from . import nets

pytestmark = pytest.mark.usefixtures("empty_pictures")
CURVES = ["Conv_2"], None, "mse", True
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "histograms": (plot_distribution, (["Conv_2"],), "Conv_2_distribution.png"),
    "boxes": (get_channelwise_data_distribution, (["w1_HzCalibration"], 0), "w1_HzCali"),
    "curves": (plot_acc_error, CURVES, "accumulated_error.png"),
}


def in_order(kind: str, save_dir: Any, model: Any, data: Any) -> Any:
    function, rest, _ = CALLS[kind]
    first = (data, model) if function is plot_acc_error else (model, data)
    return function(save_dir, *first, *rest)


@pytest.mark.parametrize("kind", CALLS)
def test_the_documents_order_gives_what_keywords_give(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "calibrated.onnx"
    onnx.save(nets.residual(), path)
    for number, model in enumerate((nets.residual(), path, str(path))):
        folder = tmp_path / str(number)
        in_order(kind, folder, model, nets.data(1))
        (written,) = folder.iterdir()
        assert written.name.startswith(CALLS[kind][2])


def test_numbers_are_the_same_in_both_orders(tmp_path: Path) -> None:
    model, data, draw = nets.residual(), nets.data(2), CALLS["curves"][0]
    old = draw(tmp_path, data, model, *CURVES)
    new = draw(data, model, *CURVES, tmp_path)
    assert old.curves == new.curves
    assert old.file == new.file


def test_a_parameter_given_twice_is_an_error(tmp_path: Path) -> None:
    draw = CALLS["histograms"][0]
    with pytest.raises(TypeError, match="multiple values for keyword argument 'save_dir'"):
        draw(tmp_path, nets.residual(), nets.data(1), ["Conv_2"], save_dir="b")


def test_what_fits_neither_order_is_refused_as_ever(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="save_dir"):
        plot_distribution(tmp_path, "model", nets.data(1), ["Conv_2"])  # type: ignore[arg-type]
