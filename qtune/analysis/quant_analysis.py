"""``QuantAnalysis``: the toolchain's class, over the functions of this package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from qtune.analysis import files
from qtune.analysis.case_runs import compare_runs, forget_runs, run_case, take_profiles
from qtune.analysis.cases import ANALYSIS, BASELINE, BadCases, CaseStore
from qtune.analysis.compare import LayerComparison
from qtune.analysis.deprecated import accept_old, positional, ranking_by_place
from qtune.analysis.devices import device_of
from qtune.analysis.finding import find_bad_cases, take_bad_case
from qtune.analysis.loading import load_together, save_bad_case
from qtune.analysis.outputs import PostProcess
from qtune.analysis.pairs import QUANTIZED, check_pair
from qtune.analysis.rankings import ABLATION, cache_option, check_method, rank_v1, rank_v2
from qtune.analysis.ranks import Ranks
from qtune.analysis.same_models import check_same_models
from qtune.analysis.session import Session
from qtune.analysis.tuning import tune_cases
from qtune.errors import AnalysisError, kind_of
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo, metric_of_old_name
from qtune.profiler.observe import Model
from qtune.profiler.tuned_tables import TunedTables
from qtune.quantizers.processes import unwrapped
from qtune.report.files import check_folder

T = TypeVar("T")
_Method = TypeVar("_Method", bound=Callable[..., Any])

DEFAULT_METRICS = ("L1", "COSINE", "ATOL")
DEFAULT_METRIC = "ATOL"
DEFAULT_DIR = "./horizon_quant_analysis"


def _in_step(method: _Method) -> _Method:
    """A method that all processes call; an error in one of them ends it in all."""

    @wraps(method)
    def step(self: QuantAnalysis, *args: Any, **kwargs: Any) -> Any:
        with self._session.ranks.step(method.__name__):
            return method(self, *args, **kwargs)

    return cast(_Method, step)


class QuantAnalysis:
    """Compare two models of one net, find the worst input, and the operator to blame.

    ``analysis_model_type``: ``fake_quant``, ``pre_export``, ``export``, ``convert`` or
    ``quantized``; ``AnalysisError`` names the pairs of models that a type compares.
    ``device_ids``: one GPU; without a GPU the CPU is used. ``post_process`` is applied to the
    outputs of both models before they are compared. ``metric_list`` defaults to L1, COSINE and
    ATOL. Files go to ``out_dir`` (default ``./horizon_quant_analysis``).

    The models are left as they were by every method: modes, states, scales, hooks, device and the
    random state, also after an error.

    In several processes of ``torch.distributed`` each searches its share of the data and ranks its
    share of the stubs; the first one runs the bad case and tunes, and writes the files into
    ``out_dir``, which all must see. Every process returns the same values. Source: the tuning tool
    document, "QuantAnalysis".
    """

    def __init__(
        self,
        baseline_model: Model,
        analysis_model: Model,
        analysis_model_type: str,
        device_ids: int | None = None,
        post_process: PostProcess | None = None,
        out_dir: str | None = None,
        metric_list: Sequence[str | MetricInfo] | None = None,
    ) -> None:
        if post_process is not None and not callable(post_process):
            raise AnalysisError(
                f"QuantAnalysis: post_process is called with the outputs of a model, got "
                f"{kind_of(post_process)}"
            )
        metrics = metric_list or DEFAULT_METRICS
        if isinstance(metrics, str | MetricInfo):
            metrics = [metrics]
        folder = Path(out_dir or DEFAULT_DIR)
        check_folder(folder, "QuantAnalysis: out_dir", AnalysisError)
        models = unwrapped(baseline_model), unwrapped(analysis_model)
        self._session = Session(
            *models,
            analysis_model_type,
            check_pair(*models, analysis_model_type),
            device_of(device_ids),
            folder,
            [metric_of_old_name(m) for m in metrics],
            post_process,
            BadCases(CaseStore(folder / files.CASES)),
            device_ids,
            Ranks.here(),
            old_style=analysis_model_type == QUANTIZED,
        )

    @property
    def baseline_model(self) -> Model:
        """The model taken as right."""
        return self._session.baseline

    @property
    def analysis_model(self) -> Model:
        """The model that is looked into."""
        return self._session.analysed

    @property
    def out_dir(self) -> Path:
        """Where the files go."""
        return self._session.out_dir

    @property
    def badcase_report(self) -> BadCaseReport | None:
        """What ``auto_find_bad_case`` or ``load_bad_case`` found."""
        return self._session.cases.report

    def output_names(self) -> list[str]:
        """The names of the outputs, as ``sensitivity`` and ``tune_bad_case`` take them.

        Those of the report: call ``auto_find_bad_case`` or ``load_bad_case`` before.
        """
        report = self.badcase_report
        if report is None:
            raise AnalysisError("output_names: no report yet; call auto_find_bad_case first")
        return report.output_names

    @_in_step
    def auto_find_bad_case(
        self,
        data_generator: Iterable[Any],
        num_steps: int | None = sys.maxsize,
        cached_attrs: tuple[str, ...] | None = None,
        dump_in_run: bool = False,
        topk: int = 1,
        **old: Any,
    ) -> BadCaseReport:
        """Run both models over the data and keep the ``topk`` worst cases per output and metric.

        ``data_generator`` is asked once, for ``num_steps`` items at most. ``cached_attrs``:
        attributes of both models, by dotted name, that a frame leaves to the next one; their values
        before each frame are kept with the case. ``dump_in_run`` writes inputs at once and keeps
        none in memory. Writes ``badcase_report.html``, ``all_badcase_info.pt`` and
        ``badcase/<index>.pt``; files of an earlier search come back if this one fails.
        ``AnalysisError``: no case with a float output, an attribute that a model lacks.
        """
        by_place = positional(cached_attrs, dump_in_run)
        self._note_old(accept_old("auto_find_bad_case", {**old, **by_place}))
        steps = sys.maxsize if num_steps is None else num_steps
        attributes = () if "metric" in by_place else tuple(cached_attrs or ())
        dump = False if "device" in by_place else dump_in_run
        report = find_bad_cases(self._session, data_generator, steps, attributes, dump, topk)
        if self._session.old_style:
            self._on_first("save_bad_case", save_bad_case)
        return report

    @_in_step
    def set_bad_case(
        self,
        data: Any,
        baseline_model_cached_attr: dict[str, Any] | None = None,
        analysis_model_cached_attr: dict[str, Any] | None = None,
    ) -> None:
        """Take ``data`` as the bad case, under index 0; nothing is written.

        The attributes: dotted name -> value that the model has before the case. A run of one side
        only is kept until the other side has run, too.
        """
        given = {BASELINE: baseline_model_cached_attr, ANALYSIS: analysis_model_cached_attr}
        take_bad_case(self._session, data, {side: a for side, a in given.items() if a})

    @_in_step
    def load_bad_case(self, path: str | None = None) -> None:
        """Go on with the bad cases of an earlier session.

        ``path``: a folder or an http(s) link to one with ``all_badcase_info.pt`` and ``badcase/``,
        which are copied to ``out_dir`` (30 seconds for each answer); the file that
        ``save_bad_case`` wrote; default ``out_dir`` itself. Files load with torch's safe default
        only, and what is there stays if anything is missing.
        """
        load_together(self._session, path)

    @_in_step
    def save_bad_case(self) -> None:
        """Write the present bad case to ``badcase.pt``, and in words to ``badcase.txt``."""
        self._note_old()
        self._on_first("save_bad_case", save_bad_case)

    @_in_step
    def run(
        self,
        device: Any = None,
        index: int | None = None,
        run_baseline_model: bool = True,
        run_analysis_model: bool = True,
        metric: str | MetricInfo | None = None,
        run_on_cpu: bool = False,
        out_name: str | None = None,
    ) -> None:
        """Run the models on a bad case and keep the result of every operator.

        The case is that of ``index``, else the worst under ``metric`` (default ATOL), on output
        ``out_name`` if given. Export and convert always run on the CPU. Writes ``op_infos``.
        """
        self._note_old(accept_old("run", {} if device is None else {"device": device}))
        if index is not None and metric is not None:
            raise AnalysisError("run: give index or metric, not both")
        chosen = self._metric(metric or DEFAULT_METRIC)
        wanted = {BASELINE: run_baseline_model, ANALYSIS: run_analysis_model}
        sides = [side for side, is_wanted in wanted.items() if is_wanted]

        def run(session: Session) -> None:
            run_case(session, session.cases.choose(index, chosen, out_name), sides, run_on_cpu)

        self._on_first("run", run)

    @_in_step
    def compare_per_layer(
        self, prefixes: tuple[str, ...] | None = None, types: tuple[Any, ...] | None = None
    ) -> LayerComparison:
        """Compare the two runs operator by operator; ``prefixes`` and ``types`` mean both.

        Writes ``compare_per_layer_out_0.txt`` and ``.csv`` and ``compare_per_layer_report_0.html``.
        """
        return self._on_first("compare_per_layer", lambda s: compare_runs(s, prefixes, types))

    @_in_step
    def sensitivity(
        self,
        metric: str | MetricInfo = DEFAULT_METRIC,
        prefixes: tuple[str, ...] | None = None,
        types: tuple[Any, ...] | None = None,
        output_names: tuple[str, ...] | None = None,
        use_sensitivity_v2: bool = False,
        sensitivity_method: str = ABLATION,
        *,
        max_cache_bytes: int | None = None,
        **old: Any,
    ) -> dict[str, list[Any]]:
        """Rank every fake-quantize by what it costs alone, and (v2) by what int16 would gain.

        v2 returns output name -> one ``SensitivityTable`` per bad case and writes
        ``output_<name>_case_<index>_sensitive_ops.txt/.csv/.pt``, the mean and worst over several
        cases, and ``sensitivity_v2_report.html``. The old form returns output name -> rows
        ``[op_name, sensitive_type, op_type, value, dtype, flops]`` of the worst case and writes
        ``output_<name>_case_<index>_<metric>_sensitive_ops.txt`` for every case.

        ``sensitivity_method`` (v2 only): ``ablation`` runs the model with each fake-quantize alone;
        ``grad_x_error`` takes gradient times error of all at once and needs a differentiable loss
        as metric (:func:`~qtune.analysis.grad_x_error.grad_x_error_tables`).
        ``max_cache_bytes`` (ablation only, default 1 GiB): memory for the values of the baseline;
        where they are larger, more is computed again, with the same numbers.
        """
        by_place, old_metric = ranking_by_place(metric, prefixes, types)
        if by_place:
            metric, prefixes, types = old_metric or DEFAULT_METRIC, None, None
        self._note_old(accept_old("sensitivity", {**old, **by_place}))
        check_method(self._session, sensitivity_method, use_sensitivity_v2)
        check_same_models(self._session, "sensitivity")
        options = {
            "prefixes": prefixes,
            "types": types,
            "output_names": output_names,
            "post_process": self._session.post_process,
            **cache_option(max_cache_bytes, sensitivity_method),
        }
        chosen = self._metric(metric)
        if use_sensitivity_v2:
            return dict(rank_v2(self._session, chosen, options, sensitivity_method))
        return dict(rank_v1(self._session, chosen, options))

    @_in_step
    def tune_bad_case(
        self,
        outputs_config: Mapping[str, Mapping[str, Any]],
        skip_prefix: Mapping[str, Sequence[str]] | None = None,
    ) -> TunedTables:
        """Try int16 for the stubs with the largest gain until the goal of an output is reached.

        Needs the tables of ``sensitivity(use_sensitivity_v2=True)``; returns output name -> one
        table per bad case that has one. The model is restored. Writes
        ``output_<name>_tuned_case_<index>_sensitive_ops.txt/.csv/.pt``.
        """
        tune = partial(tune_cases, outputs_config=outputs_config, skip_prefix=skip_prefix)
        return self._on_first("tune_bad_case", tune)

    @_in_step
    def clean(self) -> None:
        """Remove what ``run`` wrote (``op_infos``); tables, reports and bad cases stay."""
        self._on_first("clean", forget_runs)

    @_in_step
    def set_model_profiler_dir(
        self, baseline_model_profiler_path: str, analysis_model_profiler_path: str
    ) -> None:
        """Compare what two profilers saw before: ``compare_per_layer`` without ``run``.

        The folders given to ``ModelProfiler`` or ``HbirModelProfiler``. The inputs are not known,
        so that there are no errors of single operators on the same input.
        """
        folders = baseline_model_profiler_path, analysis_model_profiler_path
        self._on_first("set_model_profiler_dir", lambda s: take_profiles(s, *folders))

    def _on_first(self, where: str, work: Callable[[Session], T]) -> T:
        """What the first of the processes gives, in all of them."""
        return self._session.ranks.on_first(where, lambda: work(self._session))

    def _metric(self, metric: str | MetricInfo) -> MetricInfo:
        """The metric, also by the spelling of the older toolchain (``Cosine``)."""
        found = metric_of_old_name(metric)
        self._note_old(isinstance(metric, str) and metric != found.name)
        return found

    def _note_old(self, is_old: bool = True) -> None:
        """From a call in the older way on, the older files are written, too."""
        self._session.old_style |= is_old
