"""The strict xunit2 form of JUnit XML, element by element.

The rules are those of the schema that pytest's ``xunit2`` names, junit-10.xsd of Jenkins' xunit
plugin. In that form a test case has no properties, so ``qtune_junit = suite`` and ``none`` must
keep to it; ``testcase`` adds one block of them before everything else, as pytest's own
``record_property`` does.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from importlib.metadata import version

import pytest


@dataclass(frozen=True)
class Form:
    """What an element may have. ``children`` in any order; ``text``: whether it may hold text."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    children: tuple[str, ...] = ()
    text: bool = False


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OUTCOME = Form(optional=names("type message"), text=True)
FORMS = {
    "testsuites": Form(optional=names("name time tests failures errors"), children=("testsuite",)),
    "testsuite": Form(
        names("name tests failures errors"),
        names("group time skipped timestamp hostname id package file log url"),
        ("testsuite", "properties", "testcase", "system-out", "system-err"),
    ),
    "properties": Form(children=("property",)),
    "property": Form(names("name value")),
    "testcase": Form(
        names("name"),
        names("time classname group"),
        ("skipped", "error", "failure", "system-out", "system-err"),
    ),
    "skipped": OUTCOME,
    "error": OUTCOME,
    "failure": OUTCOME,
    "system-out": Form(text=True),
    "system-err": Form(text=True),
}
TIME = re.compile(r"\d{0,3}(,\d{3})*(\.\d*)?|\d{0,3}\.\d*")
"""Seconds of a suite, as Surefire writes them; those of a test case are free."""


@dataclass
class Check:
    """Walk a file; ``faults`` says what breaks the form, and where."""

    strict: bool
    faults: list[str] = field(default_factory=list)

    def walk(self, element: ET.Element, path: str = "") -> list[str]:
        here = f"{path}/{element.tag}"
        form = FORMS.get(element.tag)
        if form is None:
            self.faults.append(f"{here}: unknown element")
            return self.faults
        given = set(element.keys())
        self.faults += [f"{here}: no {name}" for name in form.required - given]
        self.faults += [f"{here}: unknown {n}" for n in given - form.required - form.optional]
        if not form.text and (element.text or "").strip():
            self.faults.append(f"{here}: holds text")
        if element.tag.startswith("testsuite") and not TIME.fullmatch(element.get("time", "")):
            self.faults.append(f"{here}: time {element.get('time')!r}")
        self._children(element, form, here)
        return self.faults

    def _children(self, element: ET.Element, form: Form, here: str) -> None:
        for index, child in enumerate(element):
            first_properties = (element.tag, child.tag, index) == ("testcase", "properties", 0)
            if child.tag not in form.children and (self.strict or not first_properties):
                self.faults.append(f"{here}: {child.tag} is not allowed at {index}")
            if (child.tail or "").strip():
                self.faults.append(f"{here}: text behind {child.tag}")
            self.walk(child, here)


def counts(suite: ET.Element) -> dict[str, int]:
    found = {
        name: len([case for case in suite.iter("testcase") if case.find(tag) is not None])
        for name, tag in (("errors", "error"), ("failures", "failure"), ("skipped", "skipped"))
    }
    return found | {"tests": len(list(suite.iter("testcase")))}


TESTS = """
import pytest
from checks import check

@pytest.fixture
def broken():
    check(False, name="in_setup")

@pytest.fixture
def broken_end():
    yield
    check(False, name="in_teardown")

def test_good():
    print("to stdout")
    check(True, sqnr_db=31.5, cosine=0.999)

def test_bad():
    check(True, sqnr_db=30.0)
    check(False, sqnr_db=float("nan"))

def test_error(broken):
    pass

def test_end(broken_end):
    check(True, sqnr_db=29.0)

@pytest.mark.xfail(strict=True)
def test_known():
    check(False, sqnr_db=1.0)

@pytest.mark.skip(reason="no chip")
def test_skipped():
    check(False)

ODD = ["a\\nb", "\\x1b[31m", "<&\\"'>", "\\u5377\\u79ef", "\\ud800", "x::y[z]"]

@pytest.mark.parametrize("name", ODD)
def test_odd(name):
    check(True, model=name, name=name, **{name: 1.0})
"""
GATES = [
    "--qtune-gates=sqnr_db>=25",
    "--qtune-gates=cosine>=0.9",
    "--qtune-gates=top1>=0.5",
    "--qtune-gates=*: missing>=0",
]


@pytest.fixture
def project(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(test_net=TESTS)
    return project


def suite_of(project: pytest.Pytester, mode: str, *args: str) -> ET.Element:
    result = project.runpytest("--qtune", "--junitxml=j.xml", f"--qtune-junit={mode}", *args)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    root = ET.parse(project.path / "j.xml").getroot()
    assert root.tag == "testsuites"
    assert Check(strict=mode != "testcase").walk(root) == []
    (suite,) = root
    listed = counts(suite)
    tests = int(suite.get("tests", "")) - listed.pop("tests")
    assert {key: int(suite.get(key, "")) for key in listed} == listed
    assert tests in (0, 1)  # older pytest counts test_end twice: it passes, and its end fails
    for block in suite.iter("properties"):
        listed = [item.get("name") for item in block]
        assert len(set(listed)) == len(listed)
    return suite


@pytest.mark.parametrize("mode", ["suite", "none", "testcase"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_file_keeps_to_the_form(project: pytest.Pytester, mode: str, workers: str) -> None:
    suite = suite_of(project, mode, "-n", workers, *GATES, "-o", "junit_logging=all")
    cases = {(c.get("classname"), c.get("name")): c for c in suite.iter("testcase")}
    tags = {name: {child.tag for child in case} for (_, name), case in cases.items()}
    assert "error" in tags["test_error"]
    assert "failure" in tags["test_bad"]
    assert "skipped" in tags["test_known"]
    assert ("qtune-gate", "net[sqnr_db]") in cases
    assert "failure" in tags["net[sqnr_db]"]
    assert "failure" not in tags["net[cosine]"]
    has_properties = {mode for case in cases.values() if case.find("properties") is not None}
    assert has_properties == ({"testcase"} if mode == "testcase" else set())
    block = suite.find("properties")
    assert (block is None) == (mode == "none")


def test_the_suite_says_what_the_models_were_made_with(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_net="""
        import pytest
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        @pytest.mark.parametrize("mode", ["fuse_bn", "with_bn"])
        def test_a(mode):
            facts = {"torch": "2.13.0", "cpu_capability": "AVX2", "qat_mode": mode}
            conclude(AssertionResult("c", "net", True, "", "1", "2", {}, {}, [], provenance=facts))
        """
    )
    suite = suite_of(project, "testcase")
    block = suite.find("properties")
    assert block is not None
    found = {item.get("name"): item.get("value") for item in block}
    assert found["qtune.torch"] == "2.13.0"
    assert found["qtune.cpu_capability"] == "AVX2"
    assert found["qtune.qat_mode"] == "fuse_bn, with_bn"
    assert found["qtune.version"] == version("qtune")


def test_skipped_gates_keep_to_the_form(project: pytest.Pytester) -> None:
    suite = suite_of(project, "suite", "-k", "test_odd", *GATES)
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    skipped = cases["*[sqnr_db]"].find("skipped")
    assert skipped is not None
    assert skipped.get("type") == "pytest.skip"
    assert "(partial run: -k)" in skipped.get("message", "")


@pytest.mark.parametrize("mode", ["suite", "none"])
def test_crashed_worker_and_broken_file_keep_to_the_form(
    project: pytest.Pytester, mode: str
) -> None:
    project.makepyfile(test_crash="import os\ndef test_crash(): os._exit(3)")
    suite_of(project, mode, "-n2", *GATES)
    project.makepyfile(test_crash="import nothing_of_this_name")
    suite_of(project, mode, "--continue-on-collection-errors", *GATES)


@pytest.mark.parametrize(
    ("xml", "fault"),
    [
        ("<testsuites><testsuite name='' tests='1' failures='0'/></testsuites>", "no errors"),
        ("<testsuites><testcase name='a'/></testsuites>", "testcase is not allowed"),
        ("<testsuites><x/></testsuites>", "unknown element"),
        ("<testsuites time='1 s'/>", "time '1 s'"),
        ("<properties><property name='a'/></properties>", "no value"),
        ("<testcase name='a' file='b'/>", "unknown file"),
        ("<testcase name='a'>text</testcase>", "holds text"),
        ("<testcase name='a'><properties/></testcase>", "properties is not allowed"),
    ],
)
def test_the_check_sees_what_breaks_the_form(xml: str, fault: str) -> None:
    faults = Check(strict=True).walk(ET.fromstring(xml))
    assert any(fault in text for text in faults), faults
