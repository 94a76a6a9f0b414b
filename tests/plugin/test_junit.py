"""JUnit XML: numbers as properties of the test case, or of the suite, or nowhere."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest


def properties(project: pytest.Pytester, *args: str) -> dict[str, dict[str, str]]:
    project.runpytest("--junitxml=junit.xml", *args)
    suite = next(ET.parse(project.path / "junit.xml").getroot().iter("testsuite"))
    found = {case.get("name", ""): _pairs(case) for case in suite.iter("testcase")}
    found["suite"] = _pairs(suite)
    return found


def _pairs(element: ET.Element) -> dict[str, str]:
    block = element.find("properties")
    return {p.get("name", ""): p.get("value", "") for p in (block if block is not None else ())}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_metrics_are_properties_of_the_test_case(project: pytest.Pytester, workers: str) -> None:
    found = properties(project, "-n", workers)
    assert found["test_bad"] == {"qtune.check": "consistency", "qtune.atol": "0.5"}
    assert found["test_without_qtune"] == {}
    assert found["suite"] == {}


def test_suite_mode(project: pytest.Pytester) -> None:
    found = properties(project, "-o", "qtune_junit=suite", "-o", "junit_suite_name=s")
    assert found["test_bad"] == {}
    assert found["suite"]["qtune.net.consistency.atol"] == "0.5"


def test_none_mode(project: pytest.Pytester) -> None:
    found = properties(project, "--qtune-junit=none")
    assert found["test_bad"] == {}
    assert found["suite"] == {}


def test_several_assertions_of_one_test_are_numbered(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_two():
            for name in ("a", "b"):
                conclude(AssertionResult(name, "m", True, "x", "1", "2", {"v": 1}))
        """
    )
    assert properties(pytester)["test_two"] == {
        "qtune.0.check": "a",
        "qtune.0.v": "1",
        "qtune.1.check": "b",
        "qtune.1.v": "1",
    }


def test_run_data_is_on_the_suite_with_the_flag(project: pytest.Pytester) -> None:
    suite = properties(project, "--qtune", "--qtune-march=nash-e", "--qtune-threads=1")["suite"]
    assert suite == {
        "qtune.checks": "2",
        "qtune.models": "1",
        "qtune.failed": "1",
        "qtune.caught": "0",
        "qtune.errors": "0",
        "qtune.other_failures": "0",
        "qtune.march": "nash-e",
        "qtune.threads": "1",
    }


def test_assertions_of_fixtures_belong_to_their_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        @pytest.fixture
        def around():
            conclude(AssertionResult("before", "m", True, "x", "1", "2", {"v": 1}))
            yield
            conclude(AssertionResult("after", "m", True, "x", "1", "2", {"w": 2}))

        def test_first(around):
            pass

        def test_second():
            pass
        """
    )
    found = properties(pytester)
    assert found["test_first"]["qtune.v"] == "1"
    assert found["test_first"]["qtune.w"] == "2"
    assert found["test_second"] == {}


def test_march_given_in_the_tests_is_that_of_the_models(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_two():
            for march in ("nash-m", "nash-e", ""):
                facts = {"march": march}
                conclude(AssertionResult("a", "m", True, "x", "1", "2", provenance=facts))
        """
    )
    assert properties(pytester, "--qtune")["suite"]["qtune.march"] == "nash-e, nash-m"


def test_march_that_nobody_names_is_set_by_the_tests(project: pytest.Pytester) -> None:
    assert properties(project, "--qtune")["suite"]["qtune.march"] == "set by the tests"
