"""An error of torch inside a recorded graph says which operator it came from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.capture.recorder import capture
from qtune.errors import CaptureError, GuardError

from .test_restore import image


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.flat = nn.Conv2d(1, 2, 1), nn.Flatten()
        self.heads = nn.ModuleDict({"a": nn.Linear(32, 3), "b": nn.Linear(32, 5)})

    def forward(self, x: Tensor, task: str = "a") -> Tensor:
        head: Tensor = self.heads[task](self.flat(self.body(x)))
        return head


X = torch.zeros(2, 1, 4, 4)


def notes_of(model: nn.Module, *args: object, error: type[Exception] = RuntimeError) -> list[str]:
    with pytest.raises(error) as caught:
        model(*args)
    return list(getattr(caught.value, "__notes__", []))


def test_the_operator_its_line_and_both_inputs_are_named() -> None:
    graph = capture(Heads(), X, fixed=True)
    (note,) = notes_of(graph, torch.zeros(2, 1, 5, 5))
    assert note.startswith("qtune: raised by 'heads.a' (test_failing.py:23) on float32 (2, 50)")
    assert "recorded with float32 (2, 32)" in note
    (note,) = notes_of(graph, torch.zeros(2, 3, 4, 4))
    assert "'body'" in note
    assert "float32 (2, 3, 4, 4); recorded with float32 (2, 1, 4, 4)" in note
    (note,) = notes_of(graph, X.double())
    assert "on float64 (2, 1, 4, 4); recorded with float32 (2, 1, 4, 4)" in note


def test_every_path_of_a_model_names_its_operator() -> None:
    graph = capture(Heads(), [Inputs(X), Inputs(X, task="b")], fixed=True)
    (note,) = notes_of(graph, torch.zeros(2, 1, 5, 5), "b")
    assert "'heads.b'" in note


def test_a_layer_that_was_removed_or_replaced_is_named() -> None:
    graph = capture(Heads(), X, fixed=True)
    graph.heads["a"] = nn.Conv2d(1, 1, 1)
    (note,) = notes_of(graph, X)
    assert "'heads.a'" in note
    assert "prepare it again" in note
    del graph.heads["a"]
    (note,) = notes_of(graph, X, error=KeyError)
    assert "'heads.a'" in note


def test_errors_of_qtune_say_it_themselves() -> None:
    graph = capture(Heads(), X, fixed=True)
    assert notes_of(graph, X, "b", error=GuardError) == []


class Loss(nn.Module):
    def forward(self, x: Tensor, target: dict[str, Tensor] | None = None) -> Tensor:
        return x - target["map"]  # type: ignore[index]


def test_a_model_that_fails_on_its_example_is_shown_with_line_and_call() -> None:
    with pytest.raises(CaptureError, match=r"example inputs \(test_failing.py:72\)") as caught:
        capture(Loss(), image(1, 2))
    assert "model(Tensor[1, 2])" in str(caught.value)
    with pytest.raises(CaptureError, match=r"model\(Tensor\[1, 2\], dict of tensors\)"):
        capture(Loss(), (image(1, 2), {"other": image(1, 2)}))


def test_a_dict_that_was_meant_as_keyword_arguments_gets_a_hint() -> None:
    with pytest.raises(CaptureError, match=r"write qtune.Inputs\(\*\*example\)"):
        capture(Heads(), {"x": X})
