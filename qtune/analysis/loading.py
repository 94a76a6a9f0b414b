"""Bad cases from the files of an earlier session: a folder, a link to one, or a single file.

Nothing is unpickled but with torch's safe default. All is fetched and checked in a folder of its
own before it takes the place of what is there.
"""

from __future__ import annotations

import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from qtune.analysis import files
from qtune.analysis.cases import BadCases, Case, is_case, read_case, save_case
from qtune.analysis.finding import case_by_hand, share_cases
from qtune.analysis.session import Session
from qtune.errors import AnalysisError
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import Metric
from qtune.profiler.safe_load import load_safely
from qtune.report.files import write_text
from qtune.report.table import text_table

SCHEMES = ("http", "https")
TIMEOUT = 30.0
"""Seconds without an answer after which a link is given up."""

Fetch = Callable[[str, Path], object]
"""Brings the file of a relative name to a path; ``FileNotFoundError`` if there is none."""


def load_bad_cases(session: Session, path: str | Path | None) -> None:
    """Go on with the report and the cases at ``path``; their files come to ``out_dir``.

    ``path``: a folder, a link to one, the file of a single case (:func:`save_bad_case`), or
    ``None`` for ``out_dir`` itself: its report, or where it has none the case saved there.
    """
    if path is None and not (session.out_dir / files.REPORT).exists():
        saved = session.out_dir / files.CASE
        path = saved if saved.exists() else None
    if path is None or not _is_link(path) and Path(path).resolve() == session.out_dir.resolve():
        report = files.read_report(session.out_dir)
    elif _is_link(path):
        report = _take(session, partial(_download, str(path)))
    elif Path(path).is_file() and Path(path).name != files.REPORT:
        _take_file(session, Path(path))
        return
    else:
        folder = Path(path).parent if Path(path).is_file() else Path(path)
        files.read_report(folder)  # tells a folder without a report from one without its cases
        report = _take(session, partial(_copy, folder))
    session.take_cases(BadCases(session.new_store(), report, loaded=True))


def load_together(session: Session, path: str | Path | None) -> None:
    """:func:`load_bad_cases` by the first of several processes; all go on with them."""
    share_cases(session, "load_bad_case", lambda: load_bad_cases(session, path))
    session.old_style |= session.cases.by_hand is not None  # a single file, as in older versions


def save_bad_case(session: Session) -> Path:
    """Write the present bad case to ``badcase.pt``, and in words to ``badcase.txt``.

    It is the worst under ATOL, else under the first metric that was searched with.
    """
    report = session.cases.report
    metric = Metric.ATOL
    if report is not None and metric.name not in report.ascending:
        metric = Metric.get_metric(next(iter(report.ascending)))
    case = session.cases.choose(None, metric, None)
    path = session.out_dir / files.CASE
    save_case(path, case)
    write_text(path.with_suffix(".txt"), _words(case, report) + "\n")
    return path


def _words(case: Case, report: BadCaseReport | None) -> str:
    lines = [f"bad case {case.index}: {case.inputs!r}"]
    if report is None:
        return lines[0]
    rows = [
        {"output": output, "metric": metric, "value": values[case.index]}
        for output, metrics in report.values.items()
        for metric, values in metrics.items()
    ]
    return "\n".join([*lines, text_table(rows, ("output", "metric", "value"))])


def _take(session: Session, fetch: Fetch) -> BadCaseReport:
    session.out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".loading-", dir=session.out_dir) as name:
        stage = Path(name)
        fetch(files.REPORT, stage / files.REPORT)
        report = files.read_report(stage)
        (stage / files.CASES).mkdir()
        for index in report.indices:
            target = stage / files.CASES / f"{index}.pt"
            fetch(f"{files.CASES}/{index}.pt", target)
            read_case(target, index)
        store = session.new_store()
        with store.replacing():
            (stage / files.CASES).rename(store.folder)
            files.write_report(session.out_dir, report)
    return report


def _take_file(session: Session, path: Path) -> None:
    content = load_safely(path)
    if isinstance(content, BadCaseReport):
        raise AnalysisError(f"{path} holds a report; pass the folder with its {files.CASES}/")
    is_saved = is_case(content)
    case = read_case(path, 0) if is_saved else case_by_hand(session, content, {})
    session.take_cases(BadCases(session.new_store(), by_hand=case, loaded=is_saved))


def _is_link(path: str | Path) -> bool:
    return isinstance(path, str) and urllib.parse.urlsplit(path).scheme in SCHEMES


def _copy(folder: Path, name: str, target: Path) -> None:
    if not (folder / name).exists():
        raise AnalysisError(f"{folder / name} is missing, which the report names; search again")
    shutil.copyfile(folder / name, target)


def _download(link: str, name: str, target: Path) -> None:
    parts = urllib.parse.urlsplit(link)
    path = parts.path.removesuffix(files.REPORT).rstrip("/")
    url = urllib.parse.urlunsplit((*parts[:2], f"{path}/{name}", *parts[3:]))
    opener = urllib.request.build_opener(_NoOtherScheme())
    try:
        with opener.open(url, timeout=TIMEOUT) as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file)
            _check_length(answer, file.tell())
    except urllib.error.HTTPError as error:
        raise AnalysisError(
            f"load_bad_case: {url} gives {error.code} {error.reason}; the link must be the folder "
            f"that holds {files.REPORT} and {files.CASES}/"
        ) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise AnalysisError(f"load_bad_case: {url} can't be read ({reason})") from error


def _check_length(answer: Any, got: int) -> None:
    length = answer.headers.get("Content-Length")
    if length is not None and int(length) != got:
        raise OSError(f"it ended after {got} of {length} bytes")


class _NoOtherScheme(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The library's own, after a look at the scheme."""
        if urllib.parse.urlsplit(newurl).scheme not in SCHEMES:
            raise urllib.error.URLError(f"redirected to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
