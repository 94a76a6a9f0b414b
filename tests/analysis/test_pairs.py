"""Which models may be compared."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qtune.analysis.pairs import check_pair, kind_of
from qtune.errors import AnalysisError
from qtune.quantization import convert, hbdk4

from .nets import Block, calibrated


@pytest.fixture(scope="module")
def stages(request: pytest.FixtureRequest) -> dict[str, object]:
    from qtune.march import march

    x = torch.rand(1, 3, 8, 8)
    with march("nash-e"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("QTUNE_RUN_DIR", "")
        model = Block().eval()
        calib = calibrated(model, x)
        qat = hbdk4.export(calib, x)
        plain = calibrated(nn.Conv2d(3, 2, 1), x)
        return {
            "float": model,
            "calib": calib,
            "pre_export": hbdk4.pre_export(calib),
            "qat_bc": qat,
            "quantized_bc": hbdk4.convert(qat, "nash-e"),
            "converted": convert(calib),
            "plain calib": plain,
            "plain pre_export": hbdk4.pre_export(plain),
        }


@pytest.mark.parametrize(
    "kind", ["float", "calib", "pre_export", "converted", "qat_bc", "quantized_bc"]
)
def test_kinds_are_told(stages: dict[str, object], kind: str) -> None:
    assert kind_of(stages[kind]) == kind  # type: ignore[arg-type]


ALLOWED = [
    ("float", "calib", "fake_quant"),
    ("calib", "calib", "fake_quant"),
    ("qat_bc", "quantized_bc", "fake_quant"),
    ("qat_bc", "qat_bc", "fake_quant"),
    ("calib", "pre_export", "pre_export"),
    ("plain calib", "plain pre_export", "pre_export"),  # nothing to put into tables
    ("pre_export", "qat_bc", "export"),
    ("calib", "qat_bc", "export"),
    ("pre_export", "quantized_bc", "convert"),
    ("qat_bc", "quantized_bc", "convert"),
    ("calib", "converted", "quantized"),
]


@pytest.mark.parametrize(("baseline", "analysed", "kind"), ALLOWED)
def test_documented_pairs(
    stages: dict[str, object], baseline: str, analysed: str, kind: str
) -> None:
    check_pair(stages[baseline], stages[analysed], kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("baseline", "analysed", "kind"),
    [
        ("calib", "float", "fake_quant"),
        ("float", "qat_bc", "export"),
        ("calib", "calib", "pre_export"),
        ("quantized_bc", "qat_bc", "convert"),
        ("float", "float", "fake_quant"),
        ("calib", "calib", "quantized"),
        ("float", "converted", "quantized"),
        ("calib", "converted", "convert"),
        ("converted", "calib", "fake_quant"),
    ],
)
def test_other_pairs_are_refused_by_name(
    stages: dict[str, object], baseline: str, analysed: str, kind: str
) -> None:
    with pytest.raises(
        AnalysisError, match=f"{kind!r} compares .*; got {baseline} and {analysed}$"
    ):
        check_pair(stages[baseline], stages[analysed], kind)  # type: ignore[arg-type]


def test_unknown_types_are_named(stages: dict[str, object]) -> None:
    float_model, calib = stages["float"], stages["calib"]
    with pytest.raises(AnalysisError, match="unknown analysis_model_type 'x'; choose one of"):
        check_pair(float_model, calib, "x")  # type: ignore[arg-type]


def test_a_wrapped_prepared_model_is_refused(stages: dict[str, object]) -> None:
    wrapped = nn.Sequential(stages["calib"])  # type: ignore[arg-type]
    with pytest.raises(AnalysisError, match="got a Sequential; pass the calib model itself"):
        kind_of(wrapped)
