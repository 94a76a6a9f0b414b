"""JUnit XML: numbers as properties of the test case, or of the suite, or nowhere."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from qtune.version import __version__

GATES = ("--qtune-gates=atol<=0.4", "--qtune-gates=atol>=0.1", "--qtune-gates=top1>=1")


def properties(project: pytest.Pytester, *args: str) -> dict[str, dict[str, str]]:
    project.runpytest("--junitxml=junit.xml", *args)
    suite = next(ET.parse(project.path / "junit.xml").getroot().iter("testsuite"))
    found = {case.get("name", ""): _pairs(case) for case in suite.iter("testcase")}
    found["suite"] = _pairs(suite)
    return found


def _pairs(element: ET.Element) -> dict[str, str]:
    block = element.find("properties")
    pairs = [(p.get("name", ""), p.get("value", "")) for p in (() if block is None else block)]
    assert len(dict(pairs)) == len(pairs), f"a name stands twice: {pairs}"
    return dict(pairs)


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
        "qtune.gates": "0",
        "qtune.gates_failed": "0",
        "qtune.gates_skipped": "0",
        "qtune.other_failures": "0",
        "qtune.march": "nash-e",
        "qtune.threads": "1",
        "qtune.version": __version__,
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
    assert found["test_first"] == {
        "qtune.0.check": "before",
        "qtune.0.v": "1",
        "qtune.1.check": "after",
        "qtune.1.w": "2",
    }
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


def test_test_case_of_a_gate_has_what_it_compared(project: pytest.Pytester) -> None:
    found = properties(project, "--qtune", *GATES)
    assert found["net[atol <= 0.4]"] == {
        "qtune.gate.expression": "atol<=0.4",
        "qtune.gate.value": "0.5",
        "qtune.gate.limit": "<= 0.4",
    }
    assert found["*[top1]"] == {
        "qtune.gate.expression": "top1>=1",
        "qtune.gate.limit": ">= 1",
    }
    assert found["suite"]["qtune.gates_failed"] == "2"


def test_suite_mode_tells_equal_checks_and_gates_apart(project: pytest.Pytester) -> None:
    found = properties(project, "--qtune", "--qtune-junit=suite", *GATES)
    assert found["net[atol <= 0.4]"] == {}
    numbers = {k: v for k, v in found["suite"].items() if "atol" in k or "top1" in k}
    assert numbers == {
        "qtune.net.consistency.atol": "0.5",
        "qtune.net.consistency.atol#2": "0.5",
        "qtune.gate.*.top1": "n/a",
        "qtune.gate.net.atol": "0.5",
        "qtune.gate.net.atol#2": "0.5",
    }


def test_metric_that_is_called_like_a_property_of_ours_keeps_both(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_one():
            conclude(AssertionResult("a", "m", True, "x", "1", "2", {"check": 7}))
        """
    )
    assert properties(pytester)["test_one"] == {"qtune.check": "a", "qtune.check#2": "7"}


def test_properties_of_others_stay(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_one(request):
            request.node.user_properties.append(("mine", 1))
            conclude(AssertionResult("a", "m", True, "x", "1", "2", {"v": None}))
        """
    )
    found = properties(pytester)["test_one"]
    assert found == {"mine": "1", "qtune.check": "a", "qtune.v": "n/a"}
