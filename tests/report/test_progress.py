"""Who shows a bar, and that nothing else changes with it."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from qtune.errors import ArgumentError
from qtune.report import progress as module
from qtune.report.progress import expected_length, progress, progress_bar


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, *, given: bool | None = None) -> str:
    """What a loop of three steps writes to standard error."""
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(progress([5, 6, 7], "work", unit="item", shown=given)) == [5, 6, 7]
    return stream.getvalue()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.VARIABLE, raising=False)


def test_a_terminal_shows_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True)
    assert "work: " in text
    assert "3/3" in text
    assert text.endswith("\n")


def test_no_other_stream_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=False) == ""
    monkeypatch.setattr(sys, "stderr", None)
    assert list(progress([1, 2], "work", unit="item")) == [1, 2]


def test_the_environment_and_the_argument_decide_before_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(module.VARIABLE, "off")
    assert shown(monkeypatch, terminal=True) == ""
    assert "3/3" in shown(monkeypatch, terminal=True, given=True)
    monkeypatch.setenv(module.VARIABLE, "ON")
    assert "3/3" in shown(monkeypatch, terminal=False)
    assert shown(monkeypatch, terminal=True, given=False) == ""


def test_an_unknown_value_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, "maybe")
    with pytest.raises(ArgumentError, match="QTUNE_PROGRESS: expected on, off or nothing but got"):
        progress([1, 2], "work", unit="item")


def test_pytest_captures_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(3), "work", unit="item")) == [0, 1, 2]
    assert capfd.readouterr() == ("", "")


def test_one_step_has_no_bar_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(progress([1], "work", unit="item")) == [1]
    assert stream.getvalue() == ""
    assert list(progress([1], "work", unit="item", shown=True)) == [1]
    assert "1/1" in stream.getvalue()


def endless(asked: list[int]) -> Iterator[int]:
    try:
        for number in range(100):
            asked.append(number)
            yield number
    finally:
        asked.append(-1)


@pytest.mark.parametrize("terminal", [True, False])
def test_items_are_asked_for_one_by_one_and_never_closed(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", Stream(terminal))
    asked: list[int] = []
    items = endless(asked)
    for number in progress(items, "work", unit="item"):
        if number == 2:
            break
    assert asked == [0, 1, 2]
    assert next(items) == 3


def test_an_interrupt_passes_and_the_line_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    monkeypatch.setattr(sys, "stderr", stream)

    def loop() -> None:
        for _ in progress([1, 2, 3], "work", unit="item"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert stream.getvalue().endswith("\n")


def test_a_bar_that_the_block_moves_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(2, "work", unit="step") as bar:
        bar.advance("first")
        bar.advance("second")
    assert "2/2" in stream.getvalue()
    assert "second" in stream.getvalue()
    monkeypatch.setattr(sys, "stderr", Stream(False))
    with progress_bar(2, "work", unit="step") as bar:
        bar.advance("first")
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_without_a_bar_no_thread_is_started() -> None:
    before = threading.enumerate()
    assert list(progress([1, 2], "work", unit="item")) == [1, 2]
    assert threading.enumerate() == before


def test_the_expected_length_is_the_smaller_of_both() -> None:
    assert expected_length([1, 2, 3]) == 3
    assert expected_length([1, 2, 3], 2) == 2
    assert expected_length(iter([1]), 7) == 7
    assert expected_length(iter([1])) is None


def test_only_the_first_process_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distributed:
        rank = 0

        def is_available(self) -> bool:
            return True

        def is_initialized(self) -> bool:
            return True

        def get_rank(self) -> int:
            return self.rank

    group = Distributed()
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert "3/3" in shown(monkeypatch, terminal=True)
    group.rank = 1
    assert shown(monkeypatch, terminal=True) == ""
    assert shown(monkeypatch, terminal=True, given=True) == ""


def test_reports_still_never_import_torch() -> None:
    code = "import sys, qtune.report.progress as p; p.is_shown(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
