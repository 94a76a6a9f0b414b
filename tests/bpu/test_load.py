"""Files of another march are refused where they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qtune import march as marches
from qtune.bpu import compiler
from qtune.errors import MarchError
from qtune.hbir.export import export
from tests.hbir.prepared import small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    qat = export(small_cnn(X), X)
    compiler.save(qat, tmp_path / "qat.bc")
    compiler.save(compiler.convert(qat, "nash-e"), tmp_path / "quantized.bc")
    return tmp_path / "quantized.bc"


def test_a_module_of_another_march_is_refused_with_both_names_and_the_remedy(file: Path) -> None:
    with marches.march("nash-p"), pytest.raises(MarchError) as caught:
        compiler.load(file)
    text = str(caught.value)
    assert f"{file} was made for the march nash-e, but nash-p is set" in text
    assert "compile the model again for nash-p, or call qtune.set_march('nash-e')" in text
    with marches.march("nash-e"), pytest.raises(MarchError, match="but nash-m is asked for"):
        compiler.load(file, march="nash-m")


def test_the_march_that_is_passed_wins_over_the_one_that_is_set(file: Path) -> None:
    with marches.march("nash-p"):
        assert compiler.load(file, "nash-e").march == "nash-e"
    with marches.march("nash-e"):
        assert compiler.load(file).march == "nash-e"


def test_without_a_march_anything_may_be_opened(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marches, "_current", None)
    assert compiler.load(file).march == "nash-e"


def test_a_module_that_is_not_converted_belongs_to_no_march(file: Path) -> None:
    with marches.march("bayes"):
        assert compiler.load(file.parent / "qat.bc").march is None
