"""Bad cases from folders, links and files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from qtune.analysis import loading
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.errors import AnalysisError
from qtune.profiler import BadCaseReport
from qtune.quantization import hbdk4

from .nets import Block, calibrated

DATA = [torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


class Quiet(SimpleHTTPRequestHandler):
    cut = ""

    def log_message(self, *_: Any) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        if self.cut and self.path.endswith(self.cut):
            outputfile.write(source.read(100))
        else:
            super().copyfile(source, outputfile)


class Setting:
    """A session whose folder is served, and another one that loads from it."""

    def __init__(self, folder: Path) -> None:
        self.model = Block().eval()
        self.calib = calibrated(self.model, *DATA[:2])
        self.folder = folder
        self.report = self.analysis("served").auto_find_bad_case(DATA, topk=2)
        self.other = self.analysis("other")
        self.before = self.other.auto_find_bad_case(DATA[:1])
        self.handler = type("Handler", (Quiet,), {})
        served = partial(self.handler, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), served)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def link(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/served"

    def analysis(self, name: str) -> QuantAnalysis:
        return QuantAnalysis(self.model, self.calib, "fake_quant", out_dir=str(self.folder / name))

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def content(self, name: str) -> dict[str, bytes]:
        folder = self.folder / name
        return {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
        }


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Setting(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("ending", ["", "/", "/all_badcase_info.pt"])
def test_a_link_gives_the_report_its_cases_and_the_page(setting: Setting, ending: str) -> None:
    setting.other.load_bad_case(setting.link + ending)
    assert setting.other.badcase_report == setting.report
    names = set(setting.content("other"))
    cases = {f"badcase/{i}.pt" for i in setting.report.indices}
    assert names == {"all_badcase_info.pt", "badcase_report.html", *cases}
    setting.other.run(index=setting.report.indices[-1])
    assert len(setting.other.compare_per_layer())


def refused(setting: Setting, path: str, match: str) -> None:
    """The path is refused, and nothing of the present session has changed."""
    before = setting.content("other")
    with pytest.raises(AnalysisError, match=match):
        setting.other.load_bad_case(path)
    assert setting.content("other") == before
    assert setting.other.badcase_report is setting.before


def test_a_wrong_link_is_one_clear_error(setting: Setting) -> None:
    wrong = setting.link.replace("served", "elsewhere")
    refused(setting, wrong, r"elsewhere/all_badcase_info\.pt gives 404 File not found; the link")
    refused(setting, "http://127.0.0.1:9/x", r"127\.0\.0\.1:9/x/all_badcase_info\.pt can't be read")


@pytest.mark.parametrize("missing", [True, False])
def test_half_a_download_leaves_the_present_session_alone(setting: Setting, missing: bool) -> None:
    name = f"badcase/{setting.report.indices[-1]}.pt"
    if missing:
        (setting.folder / "served" / name).unlink()
        refused(setting, setting.link, f"{name} gives 404")
    else:
        setting.handler.cut = name
        refused(setting, setting.link, rf"{name} can't be read \(it ended after 100 of")


def test_a_case_with_code_in_it_is_refused(setting: Setting) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.mkdir, (setting.folder / "pwned",))

    path = setting.folder / "served" / "badcase" / f"{setting.report.indices[0]}.pt"
    torch.save({"args": (Evil(),), "kwargs": {}}, path)
    refused(setting, setting.link, "can't be read safely")
    refused(setting, str(setting.folder / "served"), "can't be read safely")
    assert not (setting.folder / "pwned").exists()


def test_a_report_with_paths_for_indices_is_refused(setting: Setting) -> None:
    report = BadCaseReport({"": {"ATOL": [("../x", 1.0)]}}, {}, {"ATOL": False})  # type: ignore
    torch.save(report, setting.folder / "served" / "all_badcase_info.pt")
    refused(setting, setting.link, "indices")


def test_a_server_that_does_not_answer_is_given_up(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "TIMEOUT", 0.05)
    waiting = threading.Event()

    def wait(handler: Any) -> None:
        waiting.wait(5)

    setting.handler.do_GET = wait  # type: ignore[attr-defined]
    refused(setting, setting.link, "can't be read")
    waiting.set()


def test_a_redirect_to_files_is_not_followed(setting: Setting) -> None:
    def redirect(handler: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", f"file://{setting.folder}/served/all_badcase_info.pt")
        handler.end_headers()

    setting.handler.do_GET = redirect  # type: ignore[attr-defined]
    refused(setting, setting.link, "redirected to file|can't be read|gives 302")


def test_a_folder_without_one_of_its_cases_is_refused(setting: Setting) -> None:
    (setting.folder / "served" / "badcase" / f"{setting.report.indices[0]}.pt").unlink()
    refused(setting, str(setting.folder / "served"), "is missing, which the report names")


def test_one_case_is_saved_and_loaded_as_a_file(setting: Setting) -> None:
    served = setting.analysis("served")
    served.load_bad_case()
    served.save_bad_case()
    worst = setting.report.output_to_badcase_info[""]["ATOL"][0][0]
    assert f"bad case {worst}: Inputs(Tensor" in (served.out_dir / "badcase.txt").read_text()
    setting.other.load_bad_case(str(served.out_dir / "badcase.pt"))
    assert setting.other.badcase_report is None
    setting.other.run()
    found = setting.other.compare_per_layer()
    served.run()
    assert str(served.compare_per_layer()) == str(found)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: [x, torch.zeros(1)]])
def test_a_file_of_inputs_is_a_case_too(setting: Setting, wrap: Any) -> None:
    path = setting.folder / "inputs.pt"
    torch.save(wrap(DATA[2]), path)
    setting.other.load_bad_case(str(path))
    setting.other.run()
    infos = sorted((setting.other.out_dir / "op_infos" / "analysis").glob("*.opinfo"))
    assert torch.equal(torch.load(infos[0]).input[0], DATA[2])


def test_a_case_of_two_bc_files_is_ranked_on_the_torch_model(setting: Setting) -> None:
    """The consistency analysis of the document."""
    pre = hbdk4.pre_export(setting.calib)
    qat = hbdk4.export(setting.calib, DATA[0])
    integer = hbdk4.convert(qat, "nash-e")
    out = str(setting.folder / "bc")
    first = QuantAnalysis(qat, integer, "convert", out_dir=out)
    report = first.auto_find_bad_case(DATA)
    with pytest.raises(AnalysisError, match="needs a torch model, this analysis has qat_bc and"):
        first.sensitivity()
    second = QuantAnalysis(pre, integer, "convert", out_dir=out)
    second.load_bad_case()
    assert second.badcase_report == report
    assert second.sensitivity()[""]
    second.run()
    second.compare_per_layer()
