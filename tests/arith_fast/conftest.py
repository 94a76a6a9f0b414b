"""Both forms of the fast kernels: compiled ones, and torch's own operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qtune.arith_fast.native import engine

FORMS = {"compiled": "", "torch": "off"}


@pytest.fixture(scope="module", params=FORMS)
def each_form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a module's tests with compiled kernels and without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(engine.SWITCH, FORMS[request.param])
        if request.param == "compiled" and not engine.available():
            pytest.skip("llvmlite is not installed")
        yield request.param
