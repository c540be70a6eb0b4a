"""One backend at work: prepares a problem's data once, then checks and measures its cases."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opbench.backends.base import Backend, Buffer
from opbench.backends.nvrtc.resources import launch_resources
from opbench.catalog.case import Case
from opbench.catalog.launch import KernelLaunch
from opbench.catalog.operator import Operator, Tensor, Tolerance
from opbench.errors import EnvironmentFault, LaunchError
from opbench.gpus.occupancy import DeviceLimits
from opbench.paths import portable
from opbench.session import verdict as judge
from opbench.session.binding import bind_library
from opbench.session.expected import Expected, Prepared
from opbench.session.rotation import Rotation, rotate
from opbench.session.verdict import Comparison, Verdict
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions, measure
from opbench.traffic.counts import Traffic
from opbench.traffic.findings import Finding

SEED = 20260
TRACED_WORK = 1e7
"""FLOPs and elements moved up to which a case's accesses are looked at on the cpu backend, some 30 million a second."""
INTEGER_RUN_FLOPS = 4e9
INTEGER_RUN_BYTES = 1 << 28
"""Beyond these the integer run is left to `opbench check`, as its reference would outlast the measurement."""


class Session:
    """Runs cases on one backend, one problem at a time."""

    def __init__(
        self,
        backend: Backend,
        seed: int = SEED,
        stands_for: DeviceLimits | None = None,
        traced_work: float = TRACED_WORK,
    ) -> None:
        self.backend = backend
        self.traced_work = traced_work
        self.stands_for = stands_for
        """The GPU whose grids and caches a run without one has."""
        self.sm_count = stands_for.sm_count if stands_for else backend.sm_count
        """Multiprocessors that grids are sized by."""
        self.seed = seed
        self._prepared: Prepared | None = None

    def prepare(self, problem: Operator) -> Prepared:
        """Buffers for a problem; those of the previous one are given back."""
        if self._prepared is None or self._prepared.problem != problem:
            self.release()
            tensors = [*problem.input_tensors(), *problem.output_tensors()]
            self._prepared = Prepared(problem, self.seed, self._allocate_all(tensors))
        return self._prepared

    def _allocate_all(self, tensors: Sequence[Tensor]) -> dict[str, Buffer]:
        """Buffers for all of these or, when memory is short, for none."""
        buffers: dict[str, Buffer] = {}
        try:
            for tensor in tensors:
                buffers[tensor.name] = self._allocate(tensor)
        except EnvironmentFault:
            self.backend.free(buffers)
            raise
        return buffers

    def release(self) -> None:
        """Give back the buffers of the current problem."""
        if self._prepared is not None:
            self.backend.free(self._prepared.buffers)
            self._prepared = None

    def _allocate(self, tensor: Tensor) -> Buffer:
        return self.backend.allocate(tensor.name, tensor.shape, tensor.dtype)

    def unsupported(self, case: Case) -> str | None:
        """Why the case cannot run here, else None."""
        reason = case.unmet()
        if reason:
            return reason
        if case.variant.is_library:
            return self._library_missing(case)
        return self.backend.unsupported(case.request())

    def _library_missing(self, case: Case) -> str | None:
        if self.backend.name != "cuda":
            return "calls a GPU library; needs the cuda backend"
        for module in case.variant.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                return f"needs the Python module {module} ({error})"
        return None

    # Check --------------------------------------------------------------------------------------------------------

    def check(self, case: Case) -> Checked:
        """Trace the case where that is possible, run it on normals, then on small integers.

        A case with findings is judged by them alone: run at full speed it might do anything.
        """
        prepared = self.prepare(case.problem)
        bound = self._bind(case, prepared)
        try:
            trace = self._trace(case, prepared, bound) if self.traced(case) else None
            if trace and trace.findings:
                verdict = Verdict(False, judge.finding_sentence(trace.findings[0]), findings=trace.findings)
                self.release()
            else:
                verdict = self._run_checked(case, prepared, bound, "normal")
            if verdict.right:
                verdict = self._check_integers(case, prepared, bound, verdict)
            verdict = replace(verdict, launches=tuple(_launch_json(step) for step in bound.launches))
            counted = _portable(trace.traffic) if trace else None
            return Checked(verdict, bound.resources, counted, bound.machine_code_sha256)
        finally:
            self.backend.free(bound.workspace)

    def traced(self, case: Case) -> bool:
        """Whether every memory access of the case is looked at: on a backend that can, where it takes a moment only."""
        work = case.problem.flops() + case.problem.bytes() / 4
        return hasattr(self.backend, "trace") and not case.variant.is_library and work <= self.traced_work

    def trace(self, case: Case, max_blocks: int | None = None) -> Any:
        """Run the case once with every memory access looked at; of each launch at most `max_blocks` are counted."""
        prepared = self.prepare(case.problem)
        bound = self._bind(case, prepared)
        try:
            return self._trace(case, prepared, bound, max_blocks)
        finally:
            self.backend.free(bound.workspace)

    def _trace(self, case: Case, prepared: Prepared, bound: _Bound, max_blocks: int | None = None) -> Any:
        from opbench.backends.cpu.tracing import TraceOptions

        self._fill(case, prepared, bound, "normal")
        buffers, options = (
            {**prepared.buffers, **bound.workspace},
            TraceOptions(max_blocks=max_blocks, limits=self.stands_for),
        )
        return self.backend.trace(case.request(), bound.launches, buffers, options)  # type: ignore[attr-defined]

    def _check_integers(self, case: Case, prepared: Prepared, bound: _Bound, verdict: Verdict) -> Verdict:
        problem = case.problem
        if problem.tolerance(case.variant.precision).exact:
            return replace(verdict, integers="exact")
        if case.variant.precision != "f32" or not problem.integers_exact:
            return replace(verdict, integers="not exact in any order")
        if problem.flops() > INTEGER_RUN_FLOPS or problem.bytes() > INTEGER_RUN_BYTES:
            return replace(verdict, integers="left out: too large; opbench check runs it on small problems")
        expected = prepared.expect("integers", "f32")
        if not judge.exact_integers_fit(problem, expected.inputs):
            return replace(verdict, integers="left out: sums would pass 2^24")
        if not judge.is_dyadic(expected.reference):
            return replace(verdict, integers="not exact: results of whole numbers are none")
        integers = self._run_checked(case, prepared, bound, "integers")
        return replace(verdict, integers="exact") if integers.right else integers

    def _bind(self, case: Case, prepared: Prepared) -> _Bound:
        workspace = {t.name: self._allocate(t) for t in case.workspace(self.sm_count)}
        launch, launches = self._bind_to(case, {**prepared.buffers, **workspace})
        if case.variant.is_library:
            return _Bound(launch, [], workspace, {})
        program = self.backend.load(case.request())
        taken = launch_resources(program.resources, launches, self._limits())
        return _Bound(launch, launches, workspace, taken, program.machine_code_sha256)

    def _bind_to(self, case: Case, buffers: Mapping[str, Buffer]) -> tuple[Callable[[], None], list[KernelLaunch]]:
        """The case's launch on these buffers, and its kernels' where it is no library."""
        if case.variant.is_library:
            return bind_library(self.backend, case, buffers), []
        launches = case.launches(self.sm_count)
        return self.backend.load(case.request()).bind(launches, buffers), launches

    def _limits(self) -> DeviceLimits | None:
        limits: DeviceLimits | None = getattr(self.backend, "limits", None)
        return limits

    def _run_checked(self, case: Case, prepared: Prepared, bound: _Bound, kind: str) -> Verdict:
        expected = self._fill(case, prepared, bound, kind)
        outputs = case.problem.output_tensors()
        everything = {**prepared.buffers, **bound.workspace}
        bound.launch()
        findings = tuple(self.backend.synchronize())
        damage = self._memory_damage(everything) or self._changed_inputs(prepared, expected)
        if damage:
            self.release()
        comparisons = [] if damage else [self._compare(prepared, t, expected, kind) for t in outputs]
        return _verdict(expected.tolerance, comparisons, findings, damage)

    def _fill(self, case: Case, prepared: Prepared, bound: _Bound, kind: str) -> Expected:
        """Inputs of a kind of run in their buffers, poison in all others."""
        expected = prepared.expect(kind, case.variant.precision)
        prepared.load(kind)
        for name, buffer in {**prepared.buffers, **bound.workspace}.items():
            if name not in expected.inputs:
                buffer.poison()
        return expected

    def _memory_damage(self, buffers: Mapping[str, Buffer]) -> str:
        for name, buffer in buffers.items():
            offset = buffer.damage()
            if offset is not None:
                return judge.guard_sentence(name, offset, int(np.prod(buffer.shape)) * buffer.dtype.itemsize)
        return ""

    def _changed_inputs(self, prepared: Prepared, expected: Expected) -> str:
        """Fingerprints say whether; only of a changed one the content is fetched, to say where."""
        for name, array in expected.inputs.items():
            if prepared.changed(name):
                index = judge.changed_input(array, prepared.buffers[name].read())
                place = f"[{','.join(map(str, index))}]" if index is not None else ""
                return f"changed its input: {name}{place}"
        return ""

    def _compare(self, prepared: Prepared, tensor: Tensor, expected: Expected, kind: str) -> Comparison:
        """An output against its reference; the very bits that were right before are right again, and not fetched."""
        buffer = prepared.buffers[tensor.name]
        key = (kind, expected.tolerance, tensor.name, buffer.fingerprint())
        found = prepared.judged.get(key)
        if found is None:
            found = judge.compare(
                tensor.name,
                tensor.dtype,
                buffer.read(),
                expected.reference[tensor.name],
                expected.magnitude[tensor.name] if expected.magnitude else None,
                expected.tolerance,
                "integers" if kind == "integers" else "value",
                expected.scale,
            )
            if found.mismatch is None:
                prepared.judged[key] = found
        return found

    def bind(self, case: Case) -> Callable[[], None]:
        """The case's launch on checked buffers, to be called at will until the next problem is prepared."""
        prepared = self.prepare(case.problem)
        prepared.load("normal", verify=True)
        return self._bind(case, prepared).launch

    # Measure ------------------------------------------------------------------------------------------------------

    def measure(
        self,
        cases: Sequence[Case],
        options: TimingOptions,
        clock: Any,
        on_start: Callable[[str], None],
        on_sample: Callable[[str, float], None],
        check_again: bool = True,
    ) -> Measured:
        """Measure right cases of one problem, interleaved; then, unless told not to, check their outputs once more."""
        prepared = self.prepare(cases[0].problem)
        prepared.load("normal", verify=True)
        bound: dict[str, _Bound] = {}
        rotation: Rotation | None = None
        try:
            for case in cases:
                on_start(case.name)
                bound[case.name] = self._bind(case, prepared)
            launches: Mapping[str, Callable[[], None]] = {name: b.launch for name, b in bound.items()}
            if options.mode == "graph":
                rotation = self._rotate(cases, prepared, bound)
                launches = rotation.launches
            found = measure(clock, launches, options, on_sample=on_sample, on_start=on_start)
            if rotation:
                found = {name: replace(m, mode=rotation.modes[name]) for name, m in found.items()}
            return Measured(found, self._check_again(bound, cases, prepared, on_start) if check_again else {})
        except EnvironmentFault as error:
            # A workspace that does not fit beside the others costs the case that asked for it, not the run.
            raise LaunchError(str(error)) from error
        finally:
            if rotation:
                for launch in rotation.launches.values():
                    clock.forget(launch)
                self.backend.free(rotation.arenas)
            for b in bound.values():
                self.backend.free(b.workspace)

    def _rotate(self, cases: Sequence[Case], prepared: Prepared, bound: Mapping[str, _Bound]) -> Rotation:
        """Every case bound to enough sets of buffers for a graph of its launches to be cold."""

        def bind(case: Case, buffers: Mapping[str, Buffer]) -> Callable[[], None]:
            return self._bind_to(case, buffers)[0]

        workspaces = {name: b.workspace for name, b in bound.items()}
        return rotate(self.backend, cases, prepared.buffers, workspaces, prepared.inputs("normal"), bind)

    def _check_again(
        self, bound: Mapping[str, _Bound], cases: Sequence[Case], prepared: Prepared, on_start: Callable[[str], None]
    ) -> dict[str, str]:
        """What timed cases got wrong, by name, on new content in the very buffers that were timed, then in other ones.

        The first finds an output that is kept and given again, or work that stops after some launches; the second
        also one that is tied to an address.
        """
        wrong: dict[str, str] = {}
        for case in cases:
            if self._prepared is not prepared:
                break  # a kernel damaged the buffers: the rest is checked in other ones only
            on_start(case.name)
            verdict = self._run_checked(case, prepared, bound[case.name], "again")
            if not verdict.right:
                wrong[case.name] = f"right before it was timed, wrong after, on new content: {verdict.reason}"
        if prepared.problem.bytes() > INTEGER_RUN_BYTES:
            return wrong  # moving and checking hundreds of megabytes once more would outlast the measurement
        self._move(prepared)
        for case in (c for c in cases if c.name not in wrong):
            on_start(case.name)
            moved = self.prepare(case.problem)
            prepared.moved_to(moved)
            fresh = self._bind(case, moved)
            try:
                verdict = self._run_checked(case, moved, fresh, "again")
            finally:
                self.backend.free(fresh.workspace)
            if not verdict.right:
                wrong[case.name] = f"right before it was timed, wrong after, in other buffers: {verdict.reason}"
        return wrong

    def _move(self, prepared: Prepared) -> None:
        """Put the current problem's buffers elsewhere: allocated while the old ones are held, if both fit."""
        held = dict(prepared.buffers) if self._prepared is prepared else {}
        self._prepared = None
        try:
            self.prepare(prepared.problem)
        except EnvironmentFault:
            self.backend.free(held)
            held = {}
        self.backend.free(held)


@dataclass(frozen=True)
class Measured:
    """Timed cases by name, and what those among them got wrong that did not stay right."""

    measurements: dict[str, Measurement]
    wrong: dict[str, str]


@dataclass(frozen=True)
class Checked:
    """What the check of one case found."""

    verdict: Verdict
    resources: dict[str, dict[str, Any]]
    traffic: dict[str, Any] | None
    """What was counted, as JSON; None where nothing was."""
    machine_code_sha256: str
    """Empty where no code for a GPU ran."""


@dataclass
class _Bound:
    """A case ready to launch."""

    launch: Callable[[], None]
    launches: list[KernelLaunch]
    workspace: dict[str, Buffer]
    resources: dict[str, dict[str, Any]]
    machine_code_sha256: str = ""


def _portable(traffic: Traffic) -> dict[str, Any]:
    """A trace's counts as JSON, with files named alike on every machine."""
    return traffic.renamed(portable).to_json()


def _launch_json(step: KernelLaunch) -> dict[str, Any]:
    if step.zero:
        return {"zero": step.zero}
    return {
        "kernel": step.kernel,
        "grid": list(step.grid),
        "block": list(step.block),
        "shared_bytes": step.shared_bytes,
    }


def _verdict(
    tolerance: Tolerance, comparisons: Sequence[Comparison], findings: tuple[Finding, ...], damage: str
) -> Verdict:
    error, norm = judge.summarise(comparisons)
    reasons = [damage] if damage else []
    reasons += [judge.finding_sentence(f) for f in findings]
    reasons += [c.mismatch.sentence() for c in comparisons if c.mismatch]
    return Verdict(
        not reasons, reasons[0] if reasons else "", error, tolerance.elementwise, norm, tolerance.norm, "", findings
    )
