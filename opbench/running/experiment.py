"""Knock-out experiments: remove one class of instructions at a time from a kernel, and time the changed kernel."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench import units
from opbench.backend.environment import Environment
from opbench.checking.backends import resolve_name
from opbench.checking.checking import trace_case
from opbench.checking.experiment import KnockOutTimes
from opbench.errors import CompileError, EnvironmentFault, OpbenchError, UsageError
from opbench.gpu.compile import nvrtc, sass
from opbench.gpu.compile.assembler import assemble, assembler
from opbench.gpu.compile.cubin import read_cubin
from opbench.gpu.compile.knockout import KnockOut
from opbench.gpu.compile.knockout_addresses import OUTSIDE_LOOPS
from opbench.gpu.compile.knockout_classes import (
    ADDRESS_ARITHMETIC,
    BANK_CONFLICTS,
    GROUPS,
    INSTRUCTION_CLASSES,
    INTEGER_CLASSES,
    INTEGERS,
    INTENDED_GROUPS,
    ptx_counts,
)
from opbench.gpu.compile.natural_loops import innermost_blocks
from opbench.gpu.limits.capability import capability_of
from opbench.gpu.limits.products import product
from opbench.gpu.limits.resources import OUTSIDE_KERNEL
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.paths import next_command
from opbench.results.experiment import (
    ORIGINAL,
    REMOVED_SHARE,
    ClassCost,
    Experiment,
    KeptLine,
    MachineCodeChange,
    PairCost,
    pair_cost,
    with_times,
)
from opbench.running.protocol import CaseStarted, Notification, OpenBackend, PackedCase, TimeCubins, pack
from opbench.running.targets import case_of, is_file
from opbench.running.worker import Worker
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions

PROBE_LIMIT_S = 20.0
"""A knock-out without an end after this time hangs; the first launch also compiles and checks the kernel."""
MAX_SILENCE_S = 60.0
TIMING_OPTIONS = TimingOptions(budget_s=0.5, max_samples=100)
"""Half the budget of a run: an experiment times more than ten kernels, whose differences are large."""
MAX_PAIRED_CLASSES = 3
"""Number of instruction classes, the costliest ones, that are also removed in pairs."""
MIN_PAIR_SHARE = 0.02
"""Least share of the kernel's time that a class must cost to be removed in pairs."""


@dataclass
class AssembledKnockOuts:
    """The knock-outs of a case: edited cubins, and the instructions that each one removes."""

    case: Case
    knockout: KnockOut
    arch: str
    costs: dict[str, ClassCost]
    cubins: dict[str, Path] = field(default_factory=dict)
    """By class; the kernel as it is has the name ORIGINAL. Empty without ptxas."""
    unroll_addresses: bool = True
    """Whether the assembler may unroll the loops in which addresses advance."""
    assembler: str = ""
    same_machine_code: bool | None = None
    missing_reason: str = ""
    """Why nothing was assembled."""


def assemble_knockouts(
    case: Case,
    capability: tuple[int, int],
    sm_count: int,
    conflicts: Collection[tuple[str, int]] | None = None,
) -> AssembledKnockOuts:
    """Remove one class of instructions at a time from a case's PTX, assemble the rest, and compare the machine code.

    `conflicts` are files and lines with bank conflicts; None if they are not known. This needs no GPU. Raises
    UsageError for a case that calls a library, CompileError and EnvironmentFault.
    """
    if case.variant.is_library:
        raise UsageError(
            f"{case.name}: this variant calls a library, so opbench has no kernel source to change; name a variant of "
            f"a .cu file: {next_command('list variants', case.problem.name)}",
            kind="library",
            subject=case.name,
            value=case.variant.id,
        )
    request = case.request()
    arch = nvrtc.architecture(capability, request)
    compiled = nvrtc.compile_cubin(request, arch)
    kernel_properties = read_cubin(compiled.cubin.read_bytes()).kernels
    static_shared_bytes = {name: kernel.shared_bytes for name, kernel in kernel_properties.items()}
    text = compiled.ptx.read_text(encoding="utf-8", errors="replace")
    knockout = KnockOut(text, case.launches(sm_count), compiled.names, static_shared_bytes, conflicts)
    costs = _classes_of(knockout, str(request.source))
    assembled = AssembledKnockOuts(case, knockout, arch, costs)
    try:
        assembled.assembler = "ptxas {}.{}".format(*assembler(arch).version)
    except EnvironmentFault as error:
        assembled.missing_reason = str(error)
        return assembled
    cubin = assemble(text, arch, case.variant.name)
    assembled.cubins[ORIGINAL] = cubin
    assembled.same_machine_code = (
        read_cubin(cubin.read_bytes()).machine_code_sha256
        == read_cubin(compiled.cubin.read_bytes()).machine_code_sha256
    )
    names = [name for name, cost in costs.items() if not cost.reason]
    with ThreadPoolExecutor(2) as pool:
        for name, outcome in zip(
            names, pool.map(lambda name: _assemble_without(assembled, (name,)), names), strict=True
        ):
            if isinstance(outcome, Path):
                costs[name] = _with_changes(assembled, costs[name], cubin, outcome)
                if not costs[name].reason:
                    assembled.cubins[name] = outcome
            else:
                costs[name] = replace(costs[name], reason="not-assembled", detail=str(outcome))
    return assembled


def _classes_of(knockout: KnockOut, own_file: str) -> dict[str, ClassCost]:
    """Return the classes of instructions that a kernel has, without costs: what can be removed, and what stays."""
    costs = {}
    for name in INSTRUCTION_CLASSES:
        removal = knockout.instructions_in_class(name)
        if removal.removable or removal.remaining:
            kept_lines = tuple(KeptLine(*line) for line in removal.remaining_lines(own_file))
            # Arithmetic outside of loops matters less than arithmetic that stays in loops.
            reasons = sorted((line.reason for line in kept_lines), key=lambda reason: reason == OUTSIDE_LOOPS)
            reason = "" if removal.removable else reasons[0]
            costs[name] = ClassCost(name, len(removal.removable), removal.lines(own_file), kept_lines, reason=reason)
    return costs


def _assemble_without(assembled: AssembledKnockOuts, names: Sequence[str]) -> Path | CompileError:
    """Return the cubin without some classes of instructions, or the assembler's error."""

    def assemble_knockout(unroll: bool) -> Path:
        text = assembled.knockout.ptx_without(names, unroll)
        return assemble(text, assembled.arch, assembled.case.variant.name)

    try:
        if tuple(names) != (ADDRESS_ARITHMETIC,):
            return assemble_knockout(assembled.unroll_addresses)
        # Shorter loops may be unrolled more: of two versions, the one with the loops of the original is compared. Pairs
        # of classes then use this version, too.
        unrolled, rolled = assemble_knockout(True), assemble_knockout(False)
        assembled.unroll_addresses = _new_accesses(assembled, unrolled) <= _new_accesses(assembled, rolled)
        return unrolled if assembled.unroll_addresses else rolled
    except CompileError as error:
        return error


def _new_accesses(assembled: AssembledKnockOuts, edited_file: Path) -> int:
    """Return by how many the memory instructions of a knock-out and of the original differ; 0 without nvdisasm."""
    try:
        before, after = (
            _group_counts(path, assembled.knockout.kernels) for path in (assembled.cubins[ORIGINAL], edited_file)
        )
    except EnvironmentFault:
        return 0
    return sum(abs(after[group] - before[group]) for group in ("global loads", "global stores", "shared memory"))


def _with_changes(assembled: AssembledKnockOuts, cost: ClassCost, original_file: Path, edited_file: Path) -> ClassCost:
    """Return the cost of a class with the changes in machine code; without nvdisasm, only the changes in registers."""
    registers = tuple(
        max(kernels[name].registers for name in assembled.knockout.kernels)
        for kernels in (read_cubin(path.read_bytes()).kernels for path in (original_file, edited_file))
    )
    cost = replace(cost, registers=(registers[0], registers[1]))
    try:
        counts_before, counts_after = (
            _group_counts(path, assembled.knockout.kernels) for path in (original_file, edited_file)
        )
    except EnvironmentFault:
        return cost
    removal = {id(statement) for statement in assembled.knockout.instructions_in_class(cost.name).removable}
    remaining = [
        statement
        for flow in assembled.knockout.flows
        for statement in flow.function.statements
        if cost.name == BANK_CONFLICTS or id(statement) not in removal
    ]
    ptx_needs = ptx_counts(remaining)
    changes = [
        MachineCodeChange(
            group,
            counts_before[group],
            counts_after[group],
            group in INTENDED_GROUPS[cost.name],
            ptx_needs.get(group, 0),
        )
        for group in (*GROUPS, *((INTEGERS,) if cost.name == ADDRESS_ARITHMETIC else ()))
        if counts_before[group] != counts_after[group]
    ]
    # With other addresses the assembler joins no accesses, so the machine code is not comparable.
    shared_group = "shared memory"
    is_joined_with_conflicts = (
        cost.name == BANK_CONFLICTS
        and abs(counts_after[shared_group] - counts_before[shared_group]) > REMOVED_SHARE * counts_before[shared_group]
    )
    return replace(cost, changes=tuple(changes), reason="joined" if is_joined_with_conflicts else "")


def _group_counts(cubin: Path, kernels: Collection[str]) -> Counter[str]:
    """Return the number of machine instructions of some kernels in each group; `kernels` are mangled names."""
    counts: Counter[str] = Counter()
    group_of = {instruction_class: group for group, classes in GROUPS.items() for instruction_class in classes}
    for name, code in sass.disassemble(cubin.read_bytes()).items():
        if name not in kernels:
            continue
        for instruction_class, count in code.mix.classes.items():
            counts[group_of.get(instruction_class, "")] += count
        following = [[target for target in block.after if target != OUTSIDE_KERNEL] for block in code.blocks]
        for block in innermost_blocks(following):
            counts[INTEGERS] += sum(code.blocks[block].classes.get(one, 0) for one in INTEGER_CLASSES)
    return counts


# All experiments of a command -------------------------------------------------------------------------------------


def run_experiments(
    names: Sequence[str],
    pattern: str,
    gpu: str,
    catalog: Catalog,
    show: Callable[[Experiment], None],
    note: Callable[[str], None],
) -> None:
    """Run the experiment of each named case and pass the result to `show` at once.

    Without a GPU or without ptxas, pass the instructions that a knock-out can remove on the GPU model `gpu`,
    and then raise EnvironmentFault with the missing part. Raises UsageError for an unknown name.
    """
    cases = [case_of(name, pattern, catalog, "quick", "cuda") for name in names]
    with tempfile.TemporaryDirectory(prefix="opbench-experiment-") as folder:
        timer = KnockOutTimer(catalog, Path(folder)) if resolve_name("auto") == "cuda" else None
        failed: OpbenchError | None = None
        missing = ""
        try:
            capability, sm_count = _device(timer.environment()) if timer else _named_gpu(gpu)
            for name, case in zip(names, cases, strict=True):
                try:
                    assembled = assemble_knockouts(case, capability, sm_count, conflict_lines(case, name, catalog))
                    missing = missing or assembled.missing_reason
                    can_time = timer is not None and not assembled.missing_reason
                    show(
                        timer.run(assembled, _with_case_name(note, case))
                        if timer and can_time
                        else without_times(assembled)
                    )
                except OpbenchError as error:  # An error of one case must not end the experiments of the others.
                    if failed is not None:
                        note(str(failed))
                    failed = error
        finally:
            if timer is not None:
                timer.close()
    if failed is not None:
        raise failed
    require_gpu(missing)


def conflict_lines(case: Case, name: str, catalog: Catalog) -> set[tuple[str, int]] | None:
    """Return files and lines with bank conflicts in shared memory, counted by the emulator at a small problem.

    `name` is the case as the user wrote it. Returns None for a kernel that the emulator does not run.
    """
    try:
        small_case = case_of(name if is_file(name) else case.variant.id, "", catalog, "quick")
        traffic, _ = trace_case(replace(small_case, config=case.config), modelled_gpu=None)
    except OpbenchError:
        return None
    return {
        (entry.file, entry.line)
        for entry in traffic.scaled_to_all_blocks().lines
        if entry.space == "shared" and entry.wavefronts > entry.ideal_wavefronts
    }


def _with_case_name(note: Callable[[str], None], case: Case) -> Callable[[str], None]:
    return lambda text: note(f"{case.name}: {text}")


def _device(environment: Environment) -> tuple[tuple[int, int], int]:
    """Return the compute capability and the number of multiprocessors of the GPU in an environment."""
    major, minor = (environment.compute_capability or "0.0").split(".")
    return (int(major), int(minor)), environment.sm_count or 1


def _named_gpu(gpu: str) -> tuple[tuple[int, int], int]:
    """Return the compute capability and the number of multiprocessors of a GPU model."""
    gpu_product = product(gpu)
    return capability_of(gpu), gpu_product.limits.sm_count if gpu_product else 1


# On a GPU ---------------------------------------------------------------------------------------------------------


def without_times(assembled: AssembledKnockOuts) -> Experiment:
    """Return the experiment without times: only the instructions that each knock-out removes."""
    return Experiment(
        assembled.case.name,
        assembled.arch,
        assembled.assembler,
        assembled.same_machine_code,
        tuple(assembled.costs.values()),
    )


def require_gpu(missing: str) -> None:
    """Raise EnvironmentFault that names the part which this machine lacks to time knock-outs.

    `missing_reason` is the reason why no knock-out was assembled.
    """
    if missing:
        raise EnvironmentFault(
            f"--experiment: {missing}. The instruction counts above are complete; only the times are missing",
            kind="missing-extra",
            subject="--experiment",
            value="no ptxas",
            allowed="ptxas",
        )
    if resolve_name("auto") != "cuda":
        from opbench.gpu.driver import why_missing

        raise EnvironmentFault(
            f"--experiment: timing knock-outs needs a GPU: {why_missing()}. The instruction counts above need none. To "
            "check the machine: opbench doctor",
            kind="needs-gpu",
            subject="--experiment",
            value="no GPU",
            allowed="a machine with an NVIDIA GPU",
        )


class KnockOutTimer:
    """Time the knock-outs of cases in a worker process; start a new process after a fault or a hang."""

    def __init__(
        self,
        catalog: Catalog,
        folder: Path,
        options: TimingOptions | None = None,
        limit_s: float = PROBE_LIMIT_S,
        worker: Worker | None = None,
    ) -> None:
        """Prepare the worker process; tests pass their own `worker`. A knock-out that runs for `limit_s` is stopped."""
        self._worker = worker or Worker(OpenBackend("cuda", catalog.extra_roots), folder / "worker.log")
        self._options, self._limit_s = options or TIMING_OPTIONS, limit_s

    def environment(self) -> Environment:
        """Start the worker process and return its environment."""
        return self._worker.open()

    def close(self) -> None:
        """End the worker process."""
        self._worker.stop()

    def run(self, assembled: AssembledKnockOuts, on_progress: Callable[[str], None] = lambda text: None) -> Experiment:
        """Time a case without each class, then without pairs of the classes that cost most time.

        A knock-out that faults or hangs gets a reason and no time. Raises UsageError for a case that is not
        right.
        """
        packed, costs = pack(assembled.case), dict(assembled.costs)
        cubins = dict(assembled.cubins)
        self._drop_faulty(packed, cubins, costs, on_progress)
        on_progress(f"{len(cubins) - 1} knock-outs are timed")
        times = self._time_cubins(packed, cubins, costs)
        original = times[ORIGINAL]
        for name, cost in costs.items():
            if name in times:
                costs[name] = _or_too_slow(with_times(cost, original, times[name]))
        pairs = self._time_pairs(assembled, packed, costs, original, on_progress)
        return replace(
            without_times(assembled),
            classes=tuple(costs.values()),
            pairs=tuple(pairs),
            source="measured",
            gpu=self._worker.open().gpu or "",
            total_s=original.median_s,
            low_s=original.low_s,
            high_s=original.high_s,
            offset_s=original.offset_s,
        )

    def _drop_faulty(
        self,
        packed: PackedCase,
        cubins: dict[str, Path],
        costs: dict[str, ClassCost],
        on_progress: Callable[[str], None],
    ) -> None:
        """Launch each knock-out alone; remove those that fault or hang from `cubins`, with the reason in `costs`."""
        for name in list(cubins):
            on_progress(f"try {name}")
            if error := self._launch_fault(packed, {name: cubins[name]}):
                if name == ORIGINAL:
                    raise error
                costs[name] = _with_failure_reason(costs[name], error)
                del cubins[name]

    def _launch_fault(self, packed: PackedCase, cubins: Mapping[str, Path]) -> OpbenchError | None:
        """Launch knock-outs and return the error, after which the worker is a new process; None without an error."""
        try:
            judged = ADDRESS_ARITHMETIC in cubins
            self._worker.ask(TimeCubins(packed, cubins, self._options, probe=True, judged=judged), self._limit_s)
        except (UsageError, EnvironmentFault):
            raise
        except OpbenchError as error:
            self._worker.stop()
            return error
        return None

    def _time_cubins(
        self, packed: PackedCase, cubins: dict[str, Path], costs: dict[str, ClassCost]
    ) -> Mapping[str, Measurement]:
        """Time all cubins in turn; one that faults gets a reason, and the others are timed again."""
        while True:
            running_cubin = ""

            def on_notification(notification: Notification) -> None:
                nonlocal running_cubin
                if isinstance(notification, CaseStarted):
                    running_cubin = notification.case

            try:
                answer: KnockOutTimes = self._worker.ask(
                    TimeCubins(packed, cubins, self._options), max(MAX_SILENCE_S, self._limit_s), on_notification
                )
                return answer.measurements
            except (UsageError, EnvironmentFault):
                raise
            except OpbenchError as error:
                self._worker.stop()
                if running_cubin in ("", ORIGINAL):
                    raise
                if running_cubin in costs:
                    costs[running_cubin] = _with_failure_reason(costs[running_cubin], error)
                del cubins[running_cubin]

    def _time_pairs(
        self,
        assembled: AssembledKnockOuts,
        packed: PackedCase,
        costs: Mapping[str, ClassCost],
        original: Measurement,
        on_progress: Callable[[str], None],
    ) -> list[PairCost]:
        """Time pairs of the classes that cost most time."""
        timed = [cost for cost in costs.values() if cost.exposed_s is not None and cost.name != BANK_CONFLICTS]
        costly = [cost.name for cost in timed if (cost.exposed_s or 0) > MIN_PAIR_SHARE * original.median_s]
        # Classes that seem to cost nothing may hide behind each other, so there are always pairs.
        costliest = sorted(timed, key=lambda cost: -(cost.exposed_s or 0))[
            : max(2, min(MAX_PAIRED_CLASSES, len(costly)))
        ]
        pairs = list(itertools.combinations([cost.name for cost in costliest], 2))
        cubins = {
            ORIGINAL: assembled.cubins[ORIGINAL],
            **{cost.name: assembled.cubins[cost.name] for cost in costliest},
        }
        for pair in pairs:
            outcome = _assemble_without(assembled, pair)
            if isinstance(outcome, Path) and self._launch_fault(packed, {"+".join(pair): outcome}) is None:
                cubins["+".join(pair)] = outcome
        if not any("+" in name for name in cubins):
            return []
        on_progress(f"{len(pairs)} pairs are timed")
        times = {name: time.samples_s for name, time in self._time_cubins(packed, cubins, {}).items()}
        return [pair_cost(pair, times) for pair in pairs if {*pair, "+".join(pair)} <= times.keys()]


def _or_too_slow(cost: ClassCost) -> ClassCost:
    """Return the cost of a class; without times if stepped addresses are slower, because these times say nothing."""
    if cost.name != ADDRESS_ARITHMETIC or cost.high_s is None or cost.high_s >= 0:
        return cost
    detail = f"it takes {units.time(cost.without_s or 0.0)}"
    return replace(cost, reason="slower", detail=detail, without_s=None, exposed_s=None, low_s=None, high_s=None)


def _with_failure_reason(cost: ClassCost, error: OpbenchError) -> ClassCost:
    """Return the cost of a class without a time, with the reason why its knock-out failed."""
    reason = {"worker-hung": "hangs", "wrong-results": "wrong-results"}.get(error.kind, "faults")
    return replace(cost, reason=reason, detail=str(error))
