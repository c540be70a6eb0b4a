"""Build the sections of a verdict from the results of its runs and the signs of cheating."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opbench import units
from opbench.judging.code import CompiledCode
from opbench.judging.codes import CODES, SectionName
from opbench.judging.document import (
    Compared,
    Compiles,
    Effect,
    Fault,
    JudgedCase,
    JudgedSize,
    MemorySafe,
    Overall,
    RaceFree,
    Right,
    Rival,
    Settings,
    Sign,
    Signs,
    Status,
    Timed,
    TimedCase,
)
from opbench.judging.signs import REFUSALS_OF_TIME, DetectedSign
from opbench.judging.sizes import JudgedProblem, is_affordable
from opbench.judging.submission import SubmittedKernels, document_path
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.special_inputs import special_inputs_of
from opbench.results.book import BookTime
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.results.rows import Row, rows
from opbench.results.winners import entries_of
from opbench.running.shapes import accepts
from opbench.source.precision import UNIT_ROUNDOFF

SECTION_ORDER: tuple[SectionName, ...] = ("compiles", "memory_safe", "race_free", "right", "timed", "compared", "signs")
"""The sections in the order in which their faults decide the code of a verdict."""


EXPLAINING_CODES, SECONDARY_CODES = ("keeps-state",), ("special-inputs", "whole-numbers", "old-output")
"""Codes that precede the other codes of their section, and codes that count only if their section has no other code.

Special inputs precede whole numbers: the small whole numbers of a tiny problem may be all 0 or all equal.
"""


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    """Sort faults by section; the first fault gives the verdict its code.

    The code must not depend on the order of cases, because random inputs decide which case fails first.
    """

    def sort_key(fault: Fault) -> tuple[int, int]:
        rank_in_section = (
            -1
            if fault.code in EXPLAINING_CODES
            else SECONDARY_CODES.index(fault.code) + 1
            if fault.code in SECONDARY_CODES
            else 0
        )
        return SECTION_ORDER.index(CODES[fault.code].section), rank_in_section

    return sorted(faults, key=sort_key)


@dataclass(frozen=True)
class Judgement:
    """The results of the checks, of the timed run and of the compiler, and the sections of the verdict on them."""

    submitted: SubmittedKernels
    settings: Settings
    problems: Mapping[str, Sequence[JudgedProblem]]
    """The judged problems by variant."""
    cases: Sequence[Case]
    cpu_run: Run
    compiled_code: CompiledCode
    gpu_check_run: Run | None = None
    """The checks on a GPU; None without a GPU, and for a kernel that failed on the CPU."""
    gpu_timing_run: Run | None = None
    """The timed run on a GPU; None without a GPU, and for a kernel that failed on the CPU."""
    _rows: list[Row] = field(default_factory=list)

    # Results ------------------------------------------------------------------------------------------------------

    @property
    def own_ids(self) -> set[str]:
        """Return the names of the submitted variants, such as "relu/vec4"."""
        return {variant.id for variant in self.submitted.variants}

    @property
    def own_results(self) -> list[Result]:
        """Return the results of the submitted variants on both backends."""
        runs = [run for run in (self.cpu_run, self.gpu_check_run, self.gpu_timing_run) if run]
        return [result for run in runs for result in run.results if self._is_own(result)]

    def _is_own(self, entry: Result | Row) -> bool:
        """Return whether a result or a row is that of a submitted variant."""
        return f"{entry.operator}/{entry.variant}" in self.own_ids

    @property
    def rows(self) -> list[Row]:
        """Return the rows of the timed run; empty without a GPU."""
        if self.gpu_timing_run and not self._rows:
            self._rows.extend(rows(self.gpu_timing_run, self.settings.gpu))
        return self._rows

    def _fastest(self, problem: str) -> Row | None:
        """Return the fastest right case of the submitted variants on a problem; None without a timed one."""
        own_rows = [r for r in self.rows if r.problem == problem and r.ranked and self._is_own(r)]
        return min(own_rows, key=lambda row: row.time_s or 0.0, default=None)

    @property
    def timed_problems(self) -> list[str]:
        """Return the problems that were timed."""
        return list(dict.fromkeys(row.problem for row in self.rows))

    # Faults outside of cases ---------------------------------------------------------------------------------------

    def unsupported_problems(self) -> list[Fault]:
        """Return a fault for each problem of the task that a submitted variant does not support."""
        faults = []
        for variant in self.submitted.variants:
            for problem in self.submitted.named_problems:
                if not accepts(variant, problem):
                    requirement = (
                        variant.unmet_requirement(problem, variant.configs[0]) if variant.configs else "has no config"
                    )
                    file = document_path(variant.path)
                    faults.append(Fault("unsupported-problem", f"it {requirement}", f"{variant.id}{problem}", file))
        return faults

    def false_claims(self) -> list[Fault]:
        """Return a fault for each variant whose header states a lower precision than the task requires."""
        required_precision = self.submitted.task.precision
        lower_variants = [
            variant
            for variant in self.submitted.variants
            if required_precision
            and UNIT_ROUNDOFF.get(variant.precision, 0.0) > UNIT_ROUNDOFF.get(required_precision, 0.0)
        ]
        return [
            Fault(
                "lower-claim",
                f"claims {v.precision}; the task asks for {required_precision}",
                v.id,
                document_path(v.path),
            )
            for v in lower_variants
        ]

    def rejected_by_nvrtc(self) -> list[Fault]:
        """Return a fault for each module that NVRTC rejects and the CPU's compiler accepts."""
        failed_on_cpu = {result.case for result in self.cpu_run.results if result.failure == "build"}
        return [
            Fault("gpu-refuses", fault.message, fault.case, document_path(fault.file), fault.line)
            for fault in self.compiled_code.faults
            if fault.case not in failed_on_cpu
        ]

    def disproved_precisions(self) -> list[Fault]:
        """Return a fault for each sign of cheating that disproves the precision in the header."""
        return [
            Fault(
                sign.rule.name,
                f"{sign.instruction} multiplies in {sign.detail}",
                sign.kernel,
                document_path(sign.file),
                sign.line,
                _text_of(self.submitted, sign),
            )
            for sign in self.compiled_code.signs
            if sign.rule.refuses
        ]

    def exceeded_limits(self) -> list[Fault]:
        """Return a fault for each of the task's limits that is exceeded."""
        task, faults = self.submitted.task, list[Fault]()
        for result in self.own_results:
            verdict = result.verdict
            if result.status != "right" or verdict is None:
                continue
            for error_name, error, max_error in (
                ("element", verdict.worst_error, task.tolerance.elementwise),
                ("norm", verdict.norm_error, task.tolerance.norm),
            ):
                if max_error is not None and error is not None and error > max_error:
                    message = f"the {error_name} error is {error:.2g}; the task allows {max_error:.2g}"
                    faults.append(Fault("error-limit", message, result.case))
        for problem in self.timed_problems:
            fastest, max_time_s, min_speedup = self._fastest(problem), task.limits.time_s, task.limits.speedup
            if fastest is None or fastest.time_s is None:
                continue
            if max_time_s is not None and fastest.time_s > max_time_s:
                message = f"the time is {units.time(fastest.time_s)}; the task allows {units.time(max_time_s)}"
                faults.append(Fault("too-slow", message, fastest.case))
            speedups = [r.speedup for r in self._rivals() if r.problem == problem and r.kind == "library" and r.speedup]
            if min_speedup is not None and speedups and min(speedups) < min_speedup:
                message = f"the speedup over the library is {min(speedups):.2f}×; the task asks for {min_speedup:g}×"
                faults.append(Fault("too-little-speedup", message, fastest.case))
        return faults

    # Sections -----------------------------------------------------------------------------------------------------

    def compiles(self, faults: Sequence[Fault]) -> Compiles:
        """Return the section on whether the kernels compile."""
        section_faults = _section_faults(faults, "compiles")
        architectures = (self.compiled_code.arch,) if self.compiled_code.arch else ()
        built_results = [r for r in self.cpu_run.results if r.status not in ("unsupported",) and r.failure != "build"]
        status: Status = "failed" if section_faults else "passed" if architectures or built_results else "not decided"
        targets = " and ".join(
            filter(None, ("for the CPU" if built_results else "", *(f"for {a}" for a in architectures)))
        )
        return Compiles(
            status,
            _summary(section_faults, f"compiles {targets}" if targets else "nothing was compiled"),
            architectures,
            section_faults,
        )

    @property
    def traced_case_count(self) -> int:
        """Return the number of cases in which all memory accesses were traced."""
        return len(self.cpu_run.traffic)

    def memory_safe(self, faults: Sequence[Fault]) -> MemorySafe:
        """Return the section on whether accesses are in bounds, aligned, and to initialised memory."""
        return MemorySafe(*self._traced_section("memory_safe", "no fault in", faults))

    def race_free(self, faults: Sequence[Fault]) -> RaceFree:
        """Return the section on whether results are independent of the order of threads and blocks."""
        return RaceFree(*self._traced_section("race_free", "no race in", faults))

    def _traced_section(
        self, name: SectionName, passed_text: str, faults: Sequence[Fault]
    ) -> tuple[Status, str, int, int, tuple[Fault, ...]]:
        """Return the fields of a section that depends on traced cases."""
        section_faults, traced = _section_faults(faults, name), self.traced_case_count
        status: Status = "failed" if section_faults else "passed" if traced else "not decided"
        text = f"{passed_text} {_traced_text(traced, len(self.cases))}"
        return status, _summary(section_faults, text), traced, len(self.cases), section_faults

    def right(self, faults: Sequence[Fault]) -> Right:
        """Return the section on whether results are right."""
        section_faults = _section_faults(faults, "right")
        results = [r for r in self.own_results if r.status != "unsupported"]
        right_results = [r for r in results if r.status == "right" and r.verdict]
        errors = [
            (v.worst_error, v.allowed_error) for r in right_results if (v := r.verdict) and v.worst_error is not None
        ]
        worst_error, allowed_error = max(errors, key=lambda pair: pair[0], default=(None, None))
        sizes = {
            str(judged.problem): JudgedSize(str(judged.problem), judged.origin)
            for problem in self.problems.values()
            for judged in problem
        }
        drawn_count = sum(size.origin in ("random", "boundary") for size in sizes.values())
        all_right = bool(right_results) and len(right_results) == len(results)
        status: Status = "failed" if section_faults else "passed" if all_right else "not decided"
        special_inputs = special_inputs_of(self.cases[0].problem) if self.cases else []
        passed_text = (
            f"{len(right_results)} of {len(results)} cases right on {len(sizes)} problems, {drawn_count} of them drawn"
        )
        return Right(
            status,
            _summary(section_faults, passed_text),
            cases=len(results),
            right=len(right_results),
            problems=tuple(sizes.values()),
            special_inputs=tuple(special_inputs),
            exact_on_integers=sum(bool(r.verdict and r.verdict.integers == "exact") for r in right_results),
            worst_error=worst_error,
            allowed_error=allowed_error,
            faults=section_faults,
        )

    def timed(self, faults: Sequence[Fault]) -> Timed:
        """Return the section with the times on the GPU."""
        section_faults = _section_faults(faults, "timed")
        if self.gpu_timing_run is None:
            missing_text = "no GPU, so no time" if self.settings.backend == "cpu" else "refused on the CPU, so no time"
            return Timed(
                "failed" if section_faults else "not decided",
                _summary(section_faults, missing_text),
                faults=section_faults,
            )
        times = tuple(
            TimedCase(
                row.case,
                row.problem,
                row.times.time_s,
                *(row.times.interval_s or (row.times.time_s, row.times.time_s)),
                row.times.samples or 0,
                row.times.mode,
                row.peak_share,
                row.bound or "",
            )
            for row in self.rows
            if row.times and row.status == "right" and self._is_own(row)
        )
        status: Status = "failed" if section_faults else "passed" if times else "not decided"
        problem_texts = [
            f"{problem}: {units.time(row.time_s)}"
            + (f", {units.percent(row.peak_share)} of peak" if row.peak_share is not None else "")
            for problem in self.timed_problems
            if (row := self._fastest(problem)) and row.time_s is not None
        ]
        gpu = self.gpu_timing_run.header.environment.gpu
        return Timed(
            status, _summary(section_faults, "; ".join(problem_texts) or "no right case"), gpu, times, section_faults
        )

    def compared(self, faults: Sequence[Fault]) -> Compared:
        """Return the section that compares the times with those of the library and the best known variant."""
        section_faults, rivals = _section_faults(faults, "compared"), self._rivals()
        measured = [rival for rival in rivals if rival.speedup is not None]
        status: Status = "failed" if section_faults else "passed" if measured else "not decided"
        if measured:
            text = "; ".join(f"{r.speedup:.2f}× as fast as {r.case} ({r.kind})" for r in measured)
        elif rivals:
            of_first = [r for r in rivals if (r.kind, r.problem) == (rivals[0].kind, rivals[0].problem)]
            fastest = min(of_first, key=lambda rival: rival.median_s)  # of several GPU models
            text = (
                f"not measured in this run; the fastest known is {fastest.case} with "
                f"{units.time(fastest.median_s)} on {fastest.gpu}"
            )
        else:
            text = "no committed run measured one of these problems"
        return Compared(status, _summary(section_faults, text), rivals, section_faults)

    def _rivals(self) -> tuple[Rival, ...]:
        """Return the libraries and best known variants to compare with.

        Their times are from this judgement or, without a GPU, from committed runs.
        """
        if self.gpu_timing_run is None:
            return tuple(
                rival
                for problem in self._comparable()
                for entry in entries_of(problem)
                for kind, time in (("best known", entry.winner), ("library", entry.library))
                if time and (rival := _rival_from_committed_run(kind, str(problem), entry.gpu, time))
            )
        gpu, rivals = self.gpu_timing_run.header.environment.gpu, list[Rival]()
        for row in self.rows:
            own_times = fastest_own.times if (fastest_own := self._fastest(row.problem)) else None
            if self._is_own(row) or not row.ranked or row.times is None:
                continue
            low_s, high_s = row.times.interval_s or (row.times.time_s, row.times.time_s)
            speedup: tuple[float | None, float | None, float | None] = (None, None, None)
            if own_times:
                own_low_s, own_high_s = own_times.interval_s or (own_times.time_s, own_times.time_s)
                speedup = row.times.time_s / own_times.time_s, low_s / own_high_s, high_s / own_low_s
            kind = "library" if row.library else "best known"
            rivals.append(
                Rival(kind, row.case, row.problem, gpu, row.times.time_s, low_s, high_s, True, *speedup)  # type: ignore[arg-type]
            )
        return tuple(rivals)

    def _comparable(self) -> list[Operator]:
        """Return the problems to compare on: those of the task, or those of committed runs that variants support."""
        if self.submitted.named_problems:
            return list(self.submitted.named_problems)
        from opbench.results.winners import shipped_winners

        name = self.submitted.operator.name
        known_problems = dict.fromkeys(e.problem for e in shipped_winners().entries if e.operator == name)
        problems = [self.submitted.operator.parse(problem) for problem in known_problems]
        return [p for p in problems if any(accepts(variant, p) for variant in self.submitted.variants)]

    def cheating_signs(self, faults: Sequence[Fault]) -> Signs:
        """Return the section on signs of cheating; each sign states whether a refusal shows its effect."""
        codes = {fault.code for fault in faults}
        seen = tuple(
            Sign(
                code=sign.rule.name,
                title=sign.rule.title,
                why=sign.rule.why,
                kernel=sign.kernel,
                file=document_path(sign.file),
                line=sign.line,
                source=_text_of(self.submitted, sign),
                instruction=sign.instruction,
                levels=sign.levels,
                count=sign.count,
                effect=self._effect(sign, codes),
                detail=sign.detail,
            )
            for sign in self.compiled_code.signs
        )
        if not self.compiled_code.arch:
            return Signs("not decided", f"not read: {self.compiled_code.missing or 'the code is not CUDA C++'}")
        refused = [sign for sign in seen if sign.effect == "refused"]
        names = ", ".join(dict.fromkeys(sign.code for sign in seen))
        text = f"{units.count_noun(len(seen), 'sign')}: {names}" if seen else "no sign in the code"
        return Signs("failed" if refused else "passed", text, self.compiled_code.arch, seen)

    def _effect(self, detected_sign: DetectedSign, codes: set[str]) -> Effect:
        """Return whether one of the refusal codes, in `codes`, shows an effect of this sign."""
        if detected_sign.rule.refuses or codes & set(detected_sign.rule.effects):
            return "refused"
        needs_time = self.gpu_timing_run is None and bool(set(detected_sign.rule.effects) & set(REFUSALS_OF_TIME))
        return "not decided" if needs_time or self.right(()).status == "not decided" else "none seen"

    def judged_cases(self, code_of: Callable[[Result], str]) -> tuple[JudgedCase, ...]:
        """Return the outcome of every case on every backend."""
        return tuple(JudgedCase(r.case, r.backend, r.status, code_of(r)) for r in self.own_results)

    def unjudged_parts(self, faults: Sequence[Fault]) -> tuple[str, ...]:
        """Return the parts of the verdict that were not judged, each with the reason."""
        missing = []
        if self.gpu_timing_run is None:
            if self.settings.backend == "cuda":
                missing.append("time and comparison: a refused kernel does not run on a GPU")
            else:
                missing.append("time and comparison: this machine has no GPU that opbench can use (opbench doctor)")
            missing += [f"{p}: too large for the CPU" for p in self.submitted.named_problems if not is_affordable(p)]
        unsupported_reasons = dict.fromkeys(r.reason for r in self.cpu_run.results if r.status == "unsupported")
        missing += [f"on the CPU: {reason}" for reason in unsupported_reasons]
        if not self.compiled_code.arch:
            missing.append(f"signs: {self.compiled_code.missing}")
        traffic = self.cpu_run.traffic
        if untraced := sum(r.status == "right" and r.case not in traffic for r in self.cpu_run.results):
            missing.append(f"tracing of {untraced} large cases, which ran without tracing to save time")
        return tuple(missing)


def overall_verdict(judgement: Judgement, faults: Sequence[Fault], lacking: Sequence[str]) -> tuple[Overall, str]:
    """Return the overall verdict, and its reason in a sentence."""
    if faults:
        first = faults[0]
        return "refused", f"{first.place or first.case}: {CODES[first.code].title}: {first.message}"
    too_large = judgement.gpu_timing_run is None and any(
        not is_affordable(problem) for problem in judgement.submitted.named_problems
    )
    limits = judgement.submitted.task.limits
    needs_time = judgement.gpu_timing_run is None and (limits.time_s is not None or limits.speedup is not None)
    statuses = judgement.right(()).status, judgement.memory_safe(()).status, judgement.race_free(()).status
    if too_large or needs_time or "not decided" in statuses:
        return "not decided", f"not judged: {'; '.join(lacking)}"
    timed = judgement.timed(())
    passed_text = "The kernel compiles, is memory-safe, race-free and right"
    return (
        "accepted",
        f"{passed_text}; {timed.summary}." if timed.times else f"{passed_text}. Its time was not measured.",
    )


def _section_faults(faults: Sequence[Fault], section: SectionName) -> tuple[Fault, ...]:
    """Return the faults of one section."""
    return tuple(fault for fault in faults if CODES[fault.code].section == section)


def _summary(faults: Sequence[Fault], passed: str) -> str:
    """Return the titles of a section's faults; without faults, return the text `passed`."""
    return "; ".join(dict.fromkeys(CODES[fault.code].title for fault in faults)) or passed


def _traced_text(traced_cases: int, case_count: int) -> str:
    """Return how many cases were traced, such as "3 traced cases of 5"."""
    return units.count_noun(traced_cases, "traced case") + ("" if traced_cases == case_count else f" of {case_count}")


def _text_of(submitted: SubmittedKernels, detected_sign: DetectedSign) -> str:
    """Return the source line of a sign; "" if the line is not in a submitted file."""
    for variant in submitted.variants:
        for source in variant.sources:
            if str(source.path) == detected_sign.file and 0 < detected_sign.line <= len(
                lines := source.text.splitlines()
            ):
                return lines[detected_sign.line - 1].strip()
    return ""


def _rival_from_committed_run(kind: str, problem: str, gpu: str, time: BookTime) -> Rival:
    """Return a rival whose time is from a committed run."""
    return Rival(kind, time.case, problem, gpu, time.median_s, time.low_s, time.high_s, False)  # type: ignore[arg-type]
