"""A session on one backend: it prepares a problem's data once, runs the problem's cases and judges their outputs."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from opbench.backend.base import Backend, LibraryBackend, Trace, TraceOptions, TracingBackend
from opbench.backend.counts import Traffic
from opbench.backend.excerpt import source_line
from opbench.backend.findings import Finding, headline
from opbench.backend.rules import WARP_MASK, WRONG_RESULT
from opbench.checking.backends import open_backend
from opbench.checking.binding import Binding, BoundCase, allocate, bind
from opbench.checking.causes import error_pattern, kernel_location, pointer_type_findings
from opbench.checking.expected import Expected, PreparedProblem
from opbench.checking.huge import check_huge, is_huge
from opbench.checking.on_device import release_device_cache
from opbench.checking.outputs import judge_output, memory_damage, why_integers_are_inexact, write_inputs
from opbench.checking.verdict import Judgement, summarise
from opbench.errors import EnvironmentFault, Reason, UsageError
from opbench.gpu.compile.resources import launch_resources
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.gpu.limits.resources import LaunchResources
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.shapes import emulated_work
from opbench.kernels.special_inputs import SPECIAL_INPUTS, special_inputs_of
from opbench.kernels.tensors import Arrays, Tensor, Tolerance
from opbench.paths import next_command, portable_path
from opbench.results.result import RecordedLaunch, Verdict
from opbench.timing.clock import Launch
from opbench.timing.phases import timed_phase

DEFAULT_SEED = 20260
MAX_TRACED_WORK = 1e7
"""FLOPs and elements moved up to which the cpu backend traces a case's accesses, at about 30 million per second."""
UNDEFINED_FILLS = (1, 2)
"""Alternative values for shuffles that CUDA leaves undefined; with the first run each lane gets NaN, large and tiny."""
MAX_TESTED_SHUFFLES = 8
"""The most lines with undefined shuffles that are tested; each line needs two runs."""


@dataclass(frozen=True)
class RunOutcome:
    """The verdict on one run of a case, and whether the run damaged data that later runs need."""

    verdict: Verdict
    damaged: bool = False
    """Whether memory may be corrupt that the case must not write; the problem's buffers must then be released."""


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one case."""

    verdict: Verdict
    resources: dict[str, LaunchResources]
    traffic: Traffic | None
    """Counted traffic, with machine-independent file names; None if nothing was counted."""
    machine_code_sha256: str
    """Empty if no GPU machine code ran."""
    outputs: Arrays = field(default_factory=dict)
    """The stored outputs of a right case that was checked on given inputs; else empty."""


class Session:
    """Runs cases on one backend, one problem at a time."""

    def __init__(
        self,
        backend: Backend,
        seed: int = DEFAULT_SEED,
        modelled_gpu: DeviceLimits | None = None,
        traced_work: float = MAX_TRACED_WORK,
        secret: str = "",
    ) -> None:
        """Open a session; `secret` repeats the random choices of an earlier session, by default they are new."""
        self.backend = backend
        # Asked once: the check of a protocol takes 0.5 ms, and each case needs the answer ten times.
        self._tracer = backend if isinstance(backend, TracingBackend) else None
        self.secret = secret or secrets.token_hex(16)
        self.traced_work = traced_work
        self.modelled_gpu = modelled_gpu
        """The limits of the GPU that a run without a GPU models: grid sizes and caches; None for no model."""
        self.sm_count = modelled_gpu.sm_count if modelled_gpu else backend.sm_count
        """The number of multiprocessors for grid sizes."""
        self.seed = seed
        self._prepared: PreparedProblem | None = None

    # A problem's buffers ------------------------------------------------------------------------------------------

    def prepare(self, problem: Operator, given_inputs: Arrays | None = None) -> PreparedProblem:
        """Return the buffers of a problem; free those of the previous problem.

        `given_inputs` are stored inputs to use instead of random ones.
        """
        if (
            self._prepared is None
            or self._prepared.problem != problem
            or self._prepared.given_inputs is not given_inputs
        ):
            self.release()
            buffers = allocate(self.backend, _all_tensors(problem))
            self._prepared = PreparedProblem(
                problem, self.seed, buffers, given_inputs, self.backend, secret=self.secret
            )
        return self._prepared

    def move(self, prepared: PreparedProblem) -> PreparedProblem:
        """Move the problem's data to new buffers. The old buffers are freed last, if memory allows."""
        try:
            buffers = allocate(self.backend, _all_tensors(prepared.problem))
            self.release()
        except EnvironmentFault:
            self.release()
            buffers = allocate(self.backend, _all_tensors(prepared.problem))
        self._prepared = PreparedProblem(prepared.problem, self.seed, buffers, prepared.given_inputs, self.backend)
        prepared.share_with(self._prepared)
        return self._prepared

    def release(self) -> None:
        """Free the buffers of the current problem."""
        if self._prepared is not None:
            self.backend.free(self._prepared.buffers)
            self._prepared = None
            release_device_cache()

    # A case -------------------------------------------------------------------------------------------------------

    def unsupported_reason(self, case: Case) -> Reason | None:
        """Return the reason why the case cannot run here; None if it can."""
        if reason := case.unmet_requirement():
            return reason
        if case.variant.is_library:
            return self._missing_library_module(case)
        message = self.backend.unsupported_reason(case.request())
        return Reason(message) if message else None

    def _missing_library_module(self, case: Case) -> Reason | None:
        """Return the reason why a library variant cannot run here; None if it can."""
        if not isinstance(self.backend, LibraryBackend):
            return Reason("calls a GPU library; needs the cuda backend", kind="needs-cuda")
        for module in case.variant.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                return Reason(f"needs the Python module {module} ({error})", kind="missing-module", subject=module)
        return None

    def bind(self, case: Case, prepared: PreparedProblem, traced: bool = False) -> BoundCase:
        """Bind a case to a problem's buffers and to a new workspace, which the caller frees.

        `traced` binds the instrumented build.
        """
        with timed_phase("loading"):
            workspace = allocate(self.backend, case.workspace(self.sm_count))
            buffers = {**prepared.buffers, **workspace}
            binding = bind(self.backend, case, buffers, self.sm_count, traced=traced)
        return BoundCase(case, prepared, workspace, binding, traced)

    def launch(self, case: Case) -> Launch:
        """Return the case's launch on inputs that were verified; it is valid until the next problem is prepared."""
        prepared = self.prepare(case.problem)
        prepared.load("normal", verify=True)
        return self.bind(case, prepared).binding.launch

    # Check --------------------------------------------------------------------------------------------------------

    def check(self, case: Case, given_inputs: Arrays | None = None) -> CheckResult:
        """Check a case: trace it if possible, then run it on normals, on small integers and on special inputs.

        Runs on integers and special inputs are traced, too, because the kernel may take other paths. A case with
        findings does not run untraced on the device. `given_inputs` replace the normals; the result of a right case
        then includes its outputs.
        """
        if self.is_sampled(case):
            assert self._tracer
            return CheckResult(check_huge(self._tracer, case, self.sm_count), {}, None, "")
        prepared = self.prepare(case.problem, given_inputs)
        bound_case = self.bind(case, prepared, self.is_traced(case))
        outcome = RunOutcome(Verdict(False))
        try:
            trace = None
            if bound_case.traced:
                trace = self._resolve_undefined_hints(bound_case, "normal", self._trace(bound_case))
            hints = tuple(f for f in trace.findings if f.hint) if trace else ()
            errors = tuple(f for f in trace.findings if not f.hint) if trace else ()
            if errors:
                outcome = RunOutcome(Verdict(False, headline(errors[0]), findings=errors + hints), damaged=True)
            else:
                outcome = self.run(bound_case, "normal")
            outputs = Arrays()
            if given_inputs is not None and outcome.verdict.right:
                outputs = {t.name: prepared.buffers[t.name].read() for t in case.problem.output_tensors()}
            for is_needed, check in (
                (True, self._check_integers),
                (trace and given_inputs is None, self._check_special_inputs),
                (case.setup.launches, self._check_setup),
                (trace, self._check_thread_orders),
            ):
                if outcome.verdict.right and is_needed:
                    outcome = check(bound_case, outcome)
            if not outcome.verdict.right:
                outcome = outcome if errors else self._add_causes(outcome, case, hints)
                outcome = _with_type_findings(outcome, bound_case)
            launch_records = tuple(map(RecordedLaunch.of, bound_case.binding.launches))
            request = None if case.variant.is_library else case.request()
            architecture = self._tracer.architecture(request) if request and self._tracer else ""
            unused_hints = tuple(f for f in hints if _is_undefined(f)) if outcome.verdict.right else ()
            notes = (*trace.notes, *unused_hints) if trace else ()
            verdict = replace(outcome.verdict, launches=launch_records, notes=notes, architecture=architecture)
            counted_traffic = trace.traffic.renamed(portable_path) if trace else None
            sha256 = bound_case.binding.program.machine_code_sha256 if bound_case.binding.program else ""
            return CheckResult(verdict, self._resources(bound_case.binding), counted_traffic, sha256, outputs)
        finally:
            self.backend.free(bound_case.workspace)
            if outcome.damaged:
                self.release()

    def _add_causes(self, outcome: RunOutcome, case: Case, hints: tuple[Finding, ...]) -> RunOutcome:
        """Add the possible causes in `hints` to the verdict on a wrong result."""
        if self._tracer and not case.variant.is_library:
            hints += tuple(self._tracer.compiler_warnings(case.request()))
        if not hints:
            return outcome
        verdict, hint = outcome.verdict, hints[0]
        cause = f"{hint.rule} at {hint.place}" if hint.line else hint.rule
        with_cause = _add_detail(verdict, f"Possible cause: {headline(hint)}.")
        reason = f"{verdict.reason}; possible cause: {cause}"
        return replace(outcome, verdict=replace(with_cause, reason=reason, findings=with_cause.findings + hints))

    def is_sampled(self, case: Case) -> bool:
        """Return whether only some blocks of the case run, because its problem does not fit into memory."""
        return self._tracer is not None and not case.variant.is_library and is_huge(case.problem)

    def is_traced(self, case: Case) -> bool:
        """Return whether the case's memory accesses are traced: the backend supports it, and the problem is small."""
        traceable = is_traceable(case.problem, self.traced_work)
        return self._tracer is not None and not case.variant.is_library and traceable

    def trace(self, case: Case) -> Trace:
        """Run the case once and trace every memory access."""
        bound_case = self.bind(case, self.prepare(case.problem), traced=True)
        try:
            return self._trace(bound_case)
        finally:
            self.backend.free(bound_case.workspace)

    def _trace(self, bound_case: BoundCase) -> Trace:
        write_inputs(bound_case, "normal")
        return self._traced_run(bound_case, TraceOptions(limits=self.modelled_gpu))

    def _traced_run(self, bound_case: BoundCase, options: TraceOptions) -> Trace:
        """Run a bound case once, traced, on the current content of its buffers."""
        assert self._tracer
        return self._tracer.trace(bound_case.case.request(), bound_case.binding.launches, bound_case.buffers, options)

    def _resolve_undefined_hints(self, bound_case: BoundCase, input_kind: str, trace: Trace) -> Trace:
        """Turn a hint about an undefined shuffle value into an error if such a value changes an output.

        Each line that reads an undefined value runs again with other values; the value matters if an output
        differs.
        """
        undefined_findings = [finding for finding in trace.findings if _is_undefined(finding) and finding.line]
        if not undefined_findings or not trace.completed or any(not f.hint for f in trace.findings):
            return trace
        outputs = [tensor.name for tensor in bound_case.case.problem.output_tensors()]
        first_fingerprints = [bound_case.buffers[name].fingerprint() for name in outputs]

        def is_used(finding: Finding) -> bool:
            for fill in UNDEFINED_FILLS:
                write_inputs(bound_case, input_kind)
                options = TraceOptions(count=False, undefined_line=finding.line, undefined_fill=fill)
                self._traced_run(bound_case, options)
                if [bound_case.buffers[name].fingerprint() for name in outputs] != first_fingerprints:
                    return True
            return False

        used_findings = [finding for finding in undefined_findings[:MAX_TESTED_SHUFFLES] if is_used(finding)]
        detail = "CUDA does not define the value, and an output depends on it: it changes when the value does."
        errors = tuple(replace(finding, hint=False, details=(*finding.details, detail)) for finding in used_findings)
        return replace(trace, findings=(*errors, *(f for f in trace.findings if f not in used_findings)))

    def _check_integers(self, bound_case: BoundCase, outcome: RunOutcome) -> RunOutcome:
        """Run the case on small integers, whose results must be exact; return the outcome with how they were
        compared.
        """
        case, problem, verdict = bound_case.case, bound_case.case.problem, outcome.verdict
        if problem.allowance(case.variant.precision).exact and not (bound_case.traced and problem.integers_exact):
            return replace(outcome, verdict=replace(verdict, integers="exact"))
        if skip_reason := why_integers_are_inexact(bound_case):
            return replace(outcome, verdict=replace(verdict, integers=skip_reason))
        integer_outcome = self._watched_run(bound_case, "integers")
        if integer_outcome.verdict.right:
            return replace(outcome, verdict=replace(verdict, integers="exact"))
        integer_outcome = replace(integer_outcome, verdict=replace(integer_outcome.verdict, run="integers"))
        return _add_input_kind(integer_outcome, "small whole numbers") if integer_outcome.damaged else integer_outcome

    def _check_special_inputs(self, bound_case: BoundCase, outcome: RunOutcome) -> RunOutcome:
        """Run the case on the special inputs that the operator allows."""
        for input_kind in special_inputs_of(bound_case.case.problem):
            if not (special_outcome := self._watched_run(bound_case, input_kind)).verdict.right:
                special_outcome = replace(special_outcome, verdict=replace(special_outcome.verdict, run=input_kind))
                return _add_input_kind(special_outcome, SPECIAL_INPUTS[input_kind][0])
        return outcome

    def _watched_run(self, bound_case: BoundCase, input_kind: str) -> RunOutcome:
        """Run a bound case once on one kind of inputs, traced if its build allows it."""
        if not bound_case.traced:
            return self.run(bound_case, input_kind)
        expected = write_inputs(bound_case, input_kind)
        trace = self._resolve_undefined_hints(
            bound_case, input_kind, self._traced_run(bound_case, TraceOptions(count=False))
        )
        if findings := tuple(f for f in trace.findings if not f.hint):
            return RunOutcome(Verdict(False, headline(findings[0]), findings=findings), damaged=True)
        return self._judged_run(bound_case, expected, lambda: None, input_kind)

    def _check_thread_orders(self, bound_case: BoundCase, outcome: RunOutcome) -> RunOutcome:
        """Run the case again in other thread orders, because a race may show only in some of them."""
        assert self._tracer
        for _ in range(1, self._tracer.order_count(bound_case.case.request())):
            if not (repeated_outcome := self.run(bound_case, "normal")).verdict.right:
                return repeated_outcome
        return outcome

    def _check_setup(self, bound_case: BoundCase, outcome: RunOutcome) -> RunOutcome:
        """Run the setup launches first, then the others, as a network does; the others must not change a setup
        workspace.
        """
        setup_launch, other_launches = (
            bind(
                self.backend,
                bound_case.case,
                bound_case.buffers,
                self.sm_count,
                setup=is_setup,
                traced=bound_case.traced,
            ).launch
            for is_setup in (True, False)
        )
        expected = write_inputs(bound_case, "normal")
        setup_launch()
        findings = self.backend.synchronize()
        setup_fingerprints = {
            name: bound_case.workspace[name].fingerprint() for name in bound_case.case.setup.workspaces
        }
        network_outcome = self._judged_run(bound_case, expected, other_launches, "normal", findings)
        changed_workspaces = [
            name
            for name, fingerprint in setup_fingerprints.items()
            if bound_case.workspace[name].fingerprint() != fingerprint
        ]
        if network_outcome.verdict.right and not changed_workspaces:
            return outcome
        if not changed_workspaces:
            verdict = _add_detail(network_outcome.verdict, "Wrong if the setup launches run first, as in a network.")
            return replace(
                network_outcome, verdict=replace(verdict, reason=f"{verdict.reason}; with the setup launches run first")
            )
        message = (
            f"a launch without setup = true writes the workspace {changed_workspaces[0]}, which a setup launch fills"
        )
        overwritten = Finding(
            WRONG_RESULT.kind, message, *kernel_location(bound_case.case), buffer=changed_workspaces[0]
        )
        all_findings = (overwritten, *network_outcome.verdict.findings)
        verdict = replace(network_outcome.verdict, right=False, reason=headline(overwritten), findings=all_findings)
        return replace(network_outcome, verdict=verdict)

    def _resources(self, binding: Binding) -> dict[str, LaunchResources]:
        program = binding.program
        return launch_resources(program.resources, binding.launches, self.backend.limits) if program else {}

    def run(self, bound_case: BoundCase, input_kind: str) -> RunOutcome:
        """Run a bound case once on one kind of inputs; judge the outputs and check that no other memory changed."""
        return self._judged_run(bound_case, write_inputs(bound_case, input_kind), bound_case.binding.launch, input_kind)

    def _judged_run(
        self,
        bound_case: BoundCase,
        expected: Expected,
        launch: Launch,
        input_kind: str,
        earlier_findings: Sequence[Finding] = (),
    ) -> RunOutcome:
        """Launch a bound case and judge its outputs; `earlier_findings` are those of earlier launches."""
        launch()
        findings = tuple(f for f in (*earlier_findings, *self.backend.synchronize()) if not f.hint)
        prepared = bound_case.prepared
        with timed_phase("memory checks"):
            damage_finding = memory_damage(bound_case, expected)
        outputs = bound_case.case.problem.output_tensors()
        judgements = (
            []
            if damage_finding
            else [
                judge_output(self.backend, bound_case, t, prepared.buffers[t.name], expected, input_kind)
                for t in outputs
            ]
        )
        mismatches = [(tensor, j.mismatch) for tensor, j in zip(outputs, judgements, strict=False) if j.mismatch]
        # Only an error needs the kernel's line, and finding the line takes milliseconds.
        file, line = kernel_location(bound_case.case) if damage_finding or mismatches else ("", 0)
        all_findings = (
            [replace(damage_finding, file=file, line=line, source=source_line(file, line))] if damage_finding else []
        )
        all_findings += findings
        for tensor, mismatch in mismatches:
            pattern = None
            if not all_findings:
                buffer = prepared.buffers[tensor.name]
                pattern = error_pattern(bound_case.case, bound_case.binding.launches, tensor, buffer, expected)
            all_findings.append(mismatch.finding(file, line, pattern))
        return RunOutcome(
            _make_verdict(expected.tolerance, judgements, tuple(all_findings)), damaged=damage_finding is not None
        )


def _with_type_findings(outcome: RunOutcome, bound_case: BoundCase) -> RunOutcome:
    """Put arguments of another type than the kernel's pointers before the other findings of an outcome."""
    type_findings = pointer_type_findings(bound_case.case, bound_case.binding.launches)
    if not type_findings:
        return outcome
    findings = (*type_findings, *outcome.verdict.findings)
    return replace(outcome, verdict=replace(outcome.verdict, reason=headline(type_findings[0]), findings=findings))


def _add_input_kind(outcome: RunOutcome, inputs: str) -> RunOutcome:
    """Add the kind of inputs on which the case failed to an outcome."""
    verdict = _add_detail(outcome.verdict, f"Wrong only with special inputs: {inputs}. Ordinary inputs are right.")
    return RunOutcome(replace(verdict, reason=f"{verdict.reason}; only with {inputs}"), damaged=True)


def is_traceable(problem: Operator, traced_work: float = MAX_TRACED_WORK) -> bool:
    """Return whether a problem is small enough to trace every memory access."""
    return emulated_work(problem) <= traced_work


def trace_case(case: Case, *, modelled_gpu: DeviceLimits | None = None) -> tuple[Traffic, list[Finding]]:
    """Run a case once on the cpu backend, on seeded inputs, and trace every memory access.

    `modelled_gpu` is the GPU that determines grid sizes and modelled caches. Raises UsageError when the case cannot run
    here.
    """
    session = Session(open_backend("cpu"), modelled_gpu=modelled_gpu)
    if reason := session.unsupported_reason(case):
        raise UsageError(
            f"{case.name}: unsupported on the cpu backend: {reason}; check the case on a GPU with: "
            f"{next_command('check', case.name, backend='cuda')}",
            kind="unsupported",
            subject=case.name,
        )
    trace = session.trace(case)
    return trace.traffic, [f for f in trace.findings if not f.hint]


def _all_tensors(problem: Operator) -> list[Tensor]:
    return [*problem.input_tensors(), *problem.output_tensors()]


def _is_undefined(finding: Finding) -> bool:
    """Return whether a finding is a shuffle with an undefined value that the kernel may never use."""
    return finding.hint and finding.kind == WARP_MASK.kind


def _make_verdict(tolerance: Tolerance, judgements: Sequence[Judgement], findings: tuple[Finding, ...]) -> Verdict:
    """Return the verdict on outputs with these judgements; a finding makes the run wrong."""
    worst_error, norm_error = summarise(judgements)
    reason = headline(findings[0]) if findings else ""
    return Verdict(not findings, reason, worst_error, tolerance.elementwise, norm_error, tolerance.norm, "", findings)


def _add_detail(verdict: Verdict, detail: str) -> Verdict:
    """Add a detail to the first finding of a verdict."""
    if not verdict.findings:
        return verdict
    first, *rest = verdict.findings
    return replace(verdict, findings=(replace(first, details=(*first.details, detail)), *rest))
