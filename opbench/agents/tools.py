"""The eight tools of `opbench mcp`. They call the functions that the command line calls, and shorten the results."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from opbench.agents.answers import (
    Advice,
    ArrayShape,
    CaseTime,
    CheckAnswer,
    CompareAnswer,
    ComparedKernel,
    ExplainAnswer,
    JudgeAnswer,
    KernelFault,
    LadderVariant,
    ListedOperator,
    NextStep,
    OperatorDescription,
    OperatorList,
    ProfileAnswer,
    RunAnswer,
    Section,
    TrafficCounts,
)
from opbench.api import check, run
from opbench.checking import backends
from opbench.errors import UsageError
from opbench.gpu.limits.ceilings import bound_and_limit, committed_ceilings
from opbench.insight import advice as insight
from opbench.insight.summary import TrafficSummary, summarise
from opbench.judging import document as verdict
from opbench.judging.codes import CODES
from opbench.judging.faults import faults_of
from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from opbench.judging.page import SECTIONS, faults_in_document, write_verdict_page
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant
from opbench.paths import new_run_folder, path_from_here
from opbench.results.advice import CaseAdvice
from opbench.results.files import Run
from opbench.results.own_variants import VariantComparison, compare_own_variants
from opbench.results.result import Result
from opbench.results.rows import Row, rows
from opbench.running.explaining import ExplainedKernel, NotExplained, compare_explained, explain_in_worker
from opbench.running.options import CheckOptions, RunOptions
from opbench.running.profile import ProfileOptions, profile_case, target_of
from opbench.running.targets import case_of
from opbench.running.untrusted import refuse_python

MAX_FAULTS, MAX_ADVICE, MAX_CASES = 5, 5, 12
"""The greatest numbers of faults, of pieces of advice and of timed cases in an answer."""
MAX_SOURCE_LENGTH = 3000
"""The most characters of source code in an answer; a longer file is not included."""
HEADER = "// /// opbench\n"
"""The first line of a header. A file outside a folder of variants names its operator on the next line."""
STATUSES_WORST_FIRST = ("failed", "wrong", "invalid", "unsupported", "no fault found", "right")
"""The statuses of a case, the worst first."""


@dataclass(frozen=True)
class Tools:
    """The tools, for kernels in one folder; each public method is one tool, and its docstring describes it."""

    root: Path
    """Files outside this folder are refused. The server runs in it, so answers name files relative to it."""
    trust: bool = False
    """Whether Python files are loaded."""
    gpu: str = "h200"
    """The GPU model that lower bounds and advice are for."""
    time_limit_s: float = 60.0
    """The time limit of each case in seconds."""
    no_cage: bool = False
    """Whether kernels run on the CPU without the cage, the sandbox for untrusted code."""

    def list_operators(self) -> OperatorList:
        """List the operators (matmul, softmax, conv2d, ...) for which opbench can check and time CUDA kernels."""
        catalog = Catalog()
        names = [name for name in catalog.operator_names() if not catalog.operator_role(name)]
        operators = [ListedOperator(name, catalog.operator_title(name).removeprefix(f"{name}: ")) for name in names]
        next_step = NextStep(
            "Describe the operator that your kernel computes.", "describe_operator", {"operator": "one of the names"}
        )
        return OperatorList(operators, next_step)

    def describe_operator(self, operator: str) -> OperatorDescription:
        """Describe one operator: its sizes, arrays, shipped variants, and a complete simple kernel to start from.

        A kernel is a .cu file without host code. A comment block at its top, the header, names the operator, the grid
        and the block; copy it from `simplest_source`.
        """
        catalog = Catalog()
        operator_class = catalog.operator(operator)
        variants = [variant for variant in catalog.variants(operator) if not variant.is_library]
        example_problem = case_of(variants[0].id, "", catalog, "quick").problem
        shapes = [_arrays(operator_class, example_problem, direction) for direction in ("inputs", "outputs")]
        ladder = [LadderVariant(v.id, v.title, v.builds_on, ", ".join(v.mechanism)) for v in variants]
        return OperatorDescription(
            operator=operator,
            title=catalog.operator_title(operator).removeprefix(f"{operator}: "),
            definition=inspect.getdoc(operator_class) or "",
            sizes=[name for name, value in example_problem.axes.items() if isinstance(value, int)],
            modes=operator_class.modes(),
            inputs=shapes[0],
            outputs=shapes[1],
            example_problem=str(example_problem),
            variants=ladder,
            simplest_source=_simplest_source(variants),
            next_step=NextStep("Write your kernel into a .cu file, then check the file.", "check", {"file": "your.cu"}),
        )

    def check(self, file: str, problems: Sequence[str] = ()) -> CheckAnswer:
        """Check a .cu kernel on the CPU: results against a float64 reference, races, out-of-bounds accesses, barriers.

        Needs no GPU. The kernel runs on many sizes, or on `problems` such as ["(n=1000)"]. Each fault has its line and
        a remedy. The kernel runs in a sandbox unless the server was started with --no-cage.
        """
        path = self._file(file)
        options = CheckOptions(
            problems=tuple(problems),
            untrusted=not self.no_cage,
            trust=self.trust and not self.no_cage,
            gpu=self.gpu,
            time_limit_s=self.time_limit_s,
        )
        results = check([path], options)
        return _check_answer(file, results)

    def run(self, file: str, problems: Sequence[str] = ()) -> RunAnswer:
        """Check and time a .cu kernel with the libraries and shipped variants of its operator; times need a GPU.

        Without a GPU the answer has the counted traffic instead. `problems` such as ["(n=1000000)"] replace the default
        sizes. On a GPU the kernel runs with the rights of the server, because the cage covers the CPU only.
        """
        path = self._file(file)
        backend = backends.resolve_name("auto")
        in_cage = backend == "cpu" and not self.no_cage
        options = RunOptions(
            problems=tuple(problems),
            backend=backend,
            out=new_run_folder("run"),
            untrusted=in_cage,
            trust=self.trust and in_cage,
            gpu=self.gpu,
            time_limit_s=self.time_limit_s,
        )
        return _run_answer(file, run(path, options), self.gpu)

    def explain(self, file: str, problem: str = "") -> ExplainAnswer:
        """Count the memory traffic of a .cu kernel per source line, and say what to change first to make it faster.

        Needs no GPU: sectors, bank conflicts and bytes are counted on the CPU. Each advice names a line, the mechanism
        that removes the problem, the avoidable share, and shipped variants that use the mechanism. `problem` such as
        "(rows=64,cols=1024)" gives the sizes; small ones are enough.
        """
        catalog = Catalog()
        case = self._case(file, problem, catalog)
        bound = bound_and_limit(committed_ceilings(self.gpu), case.problem.flops(), case.problem.bytes(), case.unit)
        explained_kernel = self._explain_case(case, catalog)
        return _explain_answer(
            file, explained_kernel, bound or (None, ""), self.gpu, _last_variant_on_cpu(case, catalog)
        )

    def compare(self, files: Sequence[str], problem: str = "") -> CompareAnswer:
        """Compare two or more .cu kernels of one operator on one problem: by time on a GPU, else by memory traffic.

        A name such as "softmax/online" compares with that shipped variant; without a GPU only.
        """
        if len(files) < 2:
            raise UsageError(
                f"files: {len(files)} given; compare needs two or more; add files, such as a.cu and b.cu",
                kind="too-few-files",
                subject="files",
                value=len(files),
                allowed=">= 2",
            )
        if backends.resolve_name("auto") == "cuda":
            paths = [self._file(file) for file in files]
            options = RunOptions(
                problems=(problem,) if problem else (),
                backend="cuda",
                out=new_run_folder("compare"),
                gpu=self.gpu,
                time_limit_s=self.time_limit_s,
            )
            comparisons = compare_own_variants(run(paths, options))
            comparisons_on_problem = [
                comparison for comparison in comparisons if comparison.problem == comparisons[0].problem
            ]
            return _compare_answer(files, comparisons_on_problem[0].problem, comparisons_on_problem)
        catalog = Catalog()
        first_case = self._case(files[0], problem, catalog)
        cases = [first_case, *(self._case(file, str(first_case.problem), catalog) for file in files[1:])]
        explained_kernels = [self._explain_case(case, catalog) for case in cases]
        return _compare_answer(files, str(first_case.problem), compare_explained(explained_kernels))

    def profile(self, file: str, problem: str = "") -> ProfileAnswer:
        """Measure hardware counters of a .cu kernel with Nsight Compute; needs a GPU and the right to read counters."""
        path = self._file(file)
        case = case_of(path, problem, Catalog())
        with tempfile.TemporaryDirectory(prefix="opbench-profile-") as folder:
            target = target_of(case, str(path), ())
            report = profile_case(target, Path(folder), ProfileOptions("ncu"), None, lambda line: None)
        counters = {
            counter_name: float(counter_value)
            for counter_name, counter_value in report.items()
            if isinstance(counter_value, (int, float)) and not isinstance(counter_value, bool)
        }
        next_step = NextStep("See which source line causes the traffic.", "explain", {"file": file})
        return ProfileAnswer(case.name, counters, next_step)

    def judge(self, file: str, task: str = "", problems: Sequence[str] = (), seed: int | None = None) -> JudgeAnswer:
        """Judge a .cu kernel: builds, memory-safe, race-free, right, time, comparison, signs of cheating: one verdict.

        Sizes and inputs are drawn with a secret seed, so a kernel cannot be written for them. `task` is a TOML file, or
        a PyTorch task such as "task.py:Model" whose code is loaded. `seed` repeats an earlier verdict.
        """
        path = self._file(file)
        task_path = self._path(task) if task else None
        output_folder = new_run_folder("judge")
        options = JudgeOptions(
            task=task_path,
            problems=tuple(problems),
            seed=seed,
            gpu=self.gpu,
            time_limit_s=self.time_limit_s,
            trust=self.trust,
            no_cage=self.no_cage,
        )
        document = judge([path], options)
        document_path = verdict.write_document(document, output_folder)
        write_verdict_page(document, output_folder)
        return _judge_answer(file, document, document_path)

    def _file(self, file_name: str) -> Path:
        """Return the path of a kernel's file below the root folder, relative to the working directory.

        Raises UsageError for a file outside the root folder and, without `trust`, for Python code.
        """
        path = self._path(file_name)
        if not self.trust:
            refuse_python([path], ())
        return path

    def _path(self, file_name: str) -> Path:
        """Return the path of a file below the root folder, relative to the working directory."""
        path = (self.root / file_name).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise UsageError(
                f"{file_name}: lies outside {self.root}; copy the file into that folder, or start: "
                "opbench mcp --root DIR",
                kind="outside-root",
                subject=file_name,
                allowed=self.root,
            )
        return Path(path_from_here(str(path)))

    def _case(self, file_or_variant: str, problem: str, catalog: Catalog) -> Case:
        """Return the case of a file, or of a shipped variant such as "softmax/online", on a problem."""
        is_variant = "/" in file_or_variant and not Path(file_or_variant).suffix
        return case_of(file_or_variant if is_variant else str(self._file(file_or_variant)), problem, catalog, "quick")

    def _explain_case(self, case: Case, catalog: Catalog) -> ExplainedKernel:
        """Count the traffic of a case in a worker process; raise UsageError if the kernel is not right."""
        try:
            return explain_in_worker(case, catalog, self.gpu, not self.no_cage, self.time_limit_s)
        except NotExplained as fault:
            raise UsageError(
                f"{fault}; only a kernel with correct results can be explained; call the tool check first",
                kind="not-right",
                value=fault,
            ) from None


TOOLS = ("list_operators", "describe_operator", "check", "run", "explain", "compare", "profile", "judge")
"""The names of the tools, in the order in which a client sees them."""


def _arrays(operator: type[Operator], example: Operator, direction: str) -> list[ArrayShape]:
    """Return the operator's input or output arrays in an example problem; `direction` is "inputs" or "outputs"."""
    tensors = example.input_tensors() if direction == "inputs" else example.output_tensors()
    axes_by_tensor = getattr(example, direction)
    return [ArrayShape(tensor.name, axes_by_tensor.get(tensor.name, ""), tensor.dtype) for tensor in tensors]


def _simplest_source(variants: Sequence[Variant]) -> str:
    """Return the source of the first variant that has a short file of its own, with its operator in the header.

    Returns "" if there is none.
    """
    for variant in variants:
        if variant.path.stem == variant.name and variant.path.suffix == ".cu":
            source = variant.path.read_text(encoding="utf-8")
            if len(source) <= MAX_SOURCE_LENGTH:
                return source.replace(HEADER, f'{HEADER}// operator = "{variant.operator}"\n', 1)
    return ""


def _check_answer(file: str, results: Sequence[Result]) -> CheckAnswer:
    """Return the answer of the tool `check` for the results of all cases, with the next step."""
    status = next(status for status in STATUSES_WORST_FIRST if any(result.status == status for result in results))
    faults = [_fault(fault) for fault in faults_of(results)]
    right = sum(result.status == "right" for result in results)
    if faults:
        first_fault = faults[0]
        next_step = NextStep(
            f"{_location_prefix(first_fault.file, first_fault.line)}{first_fault.remedy}", "check", {"file": file}
        )
    elif status == "unsupported":
        next_step = NextStep(
            "Change what the CPU backend cannot run, or check the kernel on a GPU.", "check", {"file": file}
        )
    elif status == "no fault found":
        next_step = NextStep("Name the operator in the file's header, so that results are compared with a reference.")
    else:
        next_step = NextStep("See where the memory traffic goes and what to change first.", "explain", {"file": file})
    reason = next((result.reason for result in results if result.status == status and result.reason), "")
    summary = f"{right} of {len(results)} cases are right" + (f"; first fault: {reason}" if reason else "")
    return CheckAnswer(
        status, summary, len(results), right, faults[:MAX_FAULTS], max(0, len(faults) - MAX_FAULTS), next_step
    )


def _fault(fault: verdict.Fault) -> KernelFault:
    """Return a fault of a verdict as a client sees it, with the remedy of its code."""
    remedy = CODES[fault.code].remedy
    return KernelFault(
        fault.code, fault.message, fault.file, fault.line, fault.source.strip(), remedy, fault.case, fault.cases
    )


def _location_prefix(file: str, line: int) -> str:
    """Return "my.cu:12: " for a known file and line, else ""."""
    return f"{file}:{line}: " if file and line else ""


def _run_answer(file: str, finished_run: Run, gpu: str) -> RunAnswer:
    """Return the answer of the tool `run` for a finished run, with the next step."""
    timed = finished_run.header.backend == "cuda"
    sorted_rows = sorted(rows(finished_run, gpu), key=_cost_key)
    cases = [_case_time(row) for row in sorted_rows]
    own_rows = [row for row in sorted_rows if row.own]
    if any(row.status not in ("right", "unsupported") for row in own_rows):
        next_step = NextStep("A case of the kernel is not right: check the kernel.", "check", {"file": file})
    elif not timed:
        next_step = NextStep("No GPU, so no time. See what to change first by the traffic.", "explain", {"file": file})
    elif sorted_rows and not sorted_rows[0].own:
        fastest = f"{sorted_rows[0].operator}/{sorted_rows[0].variant}"
        sentence = f"{fastest} is the fastest here. See what to change in your kernel."
        next_step = NextStep(sentence, "explain", {"file": file})
    else:
        next_step = NextStep("The kernel is the fastest here. Get a verdict.", "judge", {"file": file})
    return RunAnswer(
        backend=finished_run.header.backend,
        gpu=finished_run.header.environment.gpu,
        cases=cases[:MAX_CASES],
        cases_not_shown=max(0, len(cases) - MAX_CASES),
        results=path_from_here(str(finished_run.folder)),
        next_step=next_step,
    )


def _cost_key(row: Row) -> tuple[bool, float]:
    """Return the key that sorts rows by time or, without times, by the bytes that they move."""
    cost = row.time_s if row.time_s is not None else row.traffic.moved_bytes if row.traffic else None
    return cost is None, cost or 0.0


def _case_time(row: Row) -> CaseTime:
    low, high = (row.times and row.times.interval_s) or (None, None)
    return CaseTime(
        case=row.case,
        status=row.status,
        reason=row.reason,
        median_s=row.time_s,
        low_s=low,
        high_s=high,
        share_of_peak=row.peak_share,
        limited_by=(row.times and row.bound) or "",
        moved_bytes=row.traffic.moved_bytes if row.traffic else None,
    )


def _explain_answer(
    file: str, explained_kernel: ExplainedKernel, bound: tuple[float | None, str], gpu: str, fast_variant: str
) -> ExplainAnswer:
    """Return the answer of the tool `explain`: the traffic, the strongest advice and the next step.

    `bound` is the lower bound in seconds and its limit; `fast_variant` is a shipped variant to compare with, or "".
    """
    explanation = explained_kernel.explanation
    lines_by_file = {
        annotated.path: {line.number: line.text for line in annotated.lines} for annotated in explanation.files
    }
    advised = explained_kernel.advised
    advice = [_advice(advice, advised, lines_by_file) for advice in advised.advice]
    if advice:
        first_advice = advice[0]
        sentence = (
            f"{_location_prefix(first_advice.file, first_advice.line)}{first_advice.advice}. Then check the file again."
        )
        next_step = NextStep(sentence, "check", {"file": file})
    elif fast_variant:
        sentence = "No problem of the memory traffic is left. Compare the kernel with a fast shipped variant."
        next_step = NextStep(sentence, "compare", {"files": [file, fast_variant]})
    else:
        next_step = NextStep("No problem of the memory traffic is left. Get a verdict.", "judge", {"file": file})
    return ExplainAnswer(
        case=explanation.case,
        traffic=_traffic_counts(summarise(explained_kernel.traffic)),
        lower_bound_s=bound[0],
        lower_bound_by=bound[1],
        gpu=gpu,
        advice=advice[:MAX_ADVICE],
        next_step=next_step,
    )


def _advice(advice: insight.Advice, advised: CaseAdvice, lines_by_file: Mapping[str, Mapping[int, str]]) -> Advice:
    """Return one piece of advice as a client sees it; its gains are None if they cannot be estimated."""
    low, middle, high = (round(factor, 3) for factor in advice.gain) if advised.has_gains else (None, None, None)
    return Advice(
        file=path_from_here(advice.file) if advice.file else "",
        line=advice.line,
        further_lines=list(advice.further_lines),
        source_line=lines_by_file.get(advice.file, {}).get(advice.line, "").strip(),
        kind=advice.binds,
        mechanism=advice.mechanism,
        evidence=f"{advice.evidence} ({advice.source})",
        advice=advice.action,
        avoidable_share=round(advice.avoidable_share, 3),
        gain=middle,
        gain_low=low,
        gain_high=high,
        example_variants=list(advice.examples[:3]),
    )


def _traffic_counts(summary: TrafficSummary | None) -> TrafficCounts | None:
    """Return the counts of a summary that a client sees; None if nothing was counted."""
    if summary is None:
        return None
    return TrafficCounts(**{field.name: getattr(summary, field.name) for field in fields(TrafficCounts)})


def _last_variant_on_cpu(case: Case, catalog: Catalog) -> str:
    """Return the ladder's last variant that runs the problem on the CPU; "" if that is the case's own variant."""
    cpu_variants = [v for v in catalog.variants(case.variant.operator) if not v.is_library and not v.compute_capability]
    usable_variants = [
        v for v in cpu_variants if any(v.unmet_requirement(case.problem, config) is None for config in v.configs)
    ]
    return usable_variants[-1].id if usable_variants and usable_variants[-1].id != case.variant.id else ""


def _compare_answer(files: Sequence[str], problem: str, comparisons: Sequence[VariantComparison]) -> CompareAnswer:
    """Return the answer of the tool `compare`; the first of `files` is the base of all ratios."""
    by_time = any(comparison.time for comparison in comparisons)
    first_comparison = comparisons[0]
    kernels = [
        ComparedKernel(
            files[0], first_comparison.base_s, None, None, None, None, _traffic_counts(first_comparison.base_traffic)
        )
    ]
    for file, comparison in zip(files[1:], comparisons, strict=True):
        ratio = comparison.time
        kernels.append(
            ComparedKernel(
                kernel=file,
                median_s=comparison.new_s,
                time_ratio=ratio.value if ratio else None,
                time_ratio_low=ratio.low if ratio else None,
                time_ratio_high=ratio.high if ratio else None,
                traffic_ratio=comparison.traffic_ratio,
                traffic=_traffic_counts(comparison.new_traffic),
            )
        )
    ratios = [(kernel.time_ratio if by_time else kernel.traffic_ratio, kernel.kernel) for kernel in kernels[1:]]
    best_file = min([(1.0, files[0]), *((ratio, kernel) for ratio, kernel in ratios if ratio is not None)])[1]
    sentence = f"{best_file} {'is the fastest' if by_time else 'moves the least'}."
    own_files = [file for file in files if Path(file).suffix]
    if best_file in own_files:
        next_step = NextStep(f"{sentence} Get a verdict on it.", "judge", {"file": best_file})
    else:
        next_step = NextStep(
            f"{sentence} See what to change in your kernel.", "explain", {"file": own_files[0]} if own_files else {}
        )
    return CompareAnswer(problem, "time" if by_time else "traffic", kernels, next_step)


def _judge_answer(file: str, document: verdict.VerdictDocument, document_path: Path) -> JudgeAnswer:
    """Return the answer of the tool `judge` for a verdict document that was written to `document_path`."""
    faults = [_fault(fault) for fault in faults_in_document(document)]
    sections = [(name, getattr(document, section)) for section, name in SECTIONS]
    next_tool = "explain" if document.overall == "accepted" else "check"
    return JudgeAnswer(
        verdict=document.overall,
        code=document.code,
        reason=document.reason,
        not_judged=list(document.lacking),
        sections=[Section(name, section.status, section.summary) for name, section in sections],
        faults=faults[:MAX_FAULTS],
        signs=[f"{sign.file}:{sign.line}: {sign.title}" for sign in document.signs.seen[:MAX_FAULTS]],
        seed=document.seed,
        document=path_from_here(str(document_path)),
        next_step=NextStep(document.next_step.sentence, next_tool, {"file": file}),
    )
