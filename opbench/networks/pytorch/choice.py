"""Choose the variant that runs a problem, or PyTorch: by a winners file, a preference, or a measurement."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from opbench.errors import OpbenchError, UsageError, unknown_name
from opbench.graph.problems import ALLOWED_PRECISIONS
from opbench.insight.defaults import rank_cases
from opbench.kernels.case import Case, fitting_cases, is_named
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.networks.pytorch.devices import CPU, OpenedDevice, Runner, is_capturing, opened_device_of, runner
from opbench.networks.pytorch.torch_operators import has_peer
from opbench.paths import next_command
from opbench.results.book import Book, BookEntry, read_book

MISSING_CHOICES = ("measure", "torch", "ranked")
"""What to do with a problem that the winners file does not have."""


@dataclass(frozen=True)
class ChoiceSettings:
    """The settings that `use` stores: the winners file and the rule for problems that it lacks."""

    book: Book = field(default_factory=lambda: Book("cold", ()))
    missing: str = "measure"
    precision: str | None = None
    prefer: tuple[str, ...] = ()
    catalog: Catalog = field(default_factory=Catalog)


@dataclass(frozen=True)
class ChosenRunner:
    """The runner that was chosen for a problem on one device, and the reason."""

    runner: Runner | None
    """None if PyTorch's own operator runs the problem."""
    why: str


_settings = ChoiceSettings()
_measured: dict[tuple[str, str, str, str], BookEntry] = {}
"""Entries measured in this process, by key."""
_untimed: set[tuple[int, str, str]] = set()
"""Problems for which no variant could be timed, by device."""
_chosen: dict[tuple[str, str, int], ChosenRunner] = {}
CACHES: list[Callable[[], None]] = []
"""Functions that clear the caches of earlier choices in other modules."""
_LOCK = threading.RLock()


def use(
    book: Book | str | Path | None = None,
    *,
    missing: str = "measure",
    precision: str | None = None,
    prefer: Sequence[str] = (),
    variants: Sequence[str | Path] = (),
) -> None:
    """Set how variants are chosen from now on, for all operators of this process.

    A problem uses the variant that `book`, a winners file, lists as fastest on its GPU, or PyTorch's operator if that
    was faster. For other problems `missing` decides: "measure" times the variants and PyTorch at the first call,
    "torch" uses PyTorch, and "ranked" uses the variant that opbench ranks first without a measurement. CPU tensors
    always use the ranked variant. `precision` is the least precise arithmetic allowed for float32 tensors, "f32" or
    "tf32"; None follows PyTorch's own switches (`torch.backends.cuda.matmul`, `torch.backends.cudnn.conv`). `prefer`
    names variants, or globs of them, that take precedence wherever they fit. `variants` are extra folders, laid out as
    variants/.
    """
    global _settings  # noqa: PLW0603 (one process has one way to choose)
    if missing not in MISSING_CHOICES:
        raise UsageError(unknown_name("way", missing, MISSING_CHOICES, place=f"missing={missing!r}"))
    if precision not in (None, "f32", "tf32"):
        raise UsageError(
            f'precision={precision!r} is not allowed; use "f32", "tf32", or None to follow the settings of PyTorch',
            kind="not-allowed",
            subject="precision",
            value=precision,
            allowed=("f32", "tf32", None),
        )
    chosen_book = book if isinstance(book, Book) else read_book(Path(book)) if book is not None else Book("cold", ())
    catalog = Catalog(variants)
    with _LOCK:
        _settings = ChoiceSettings(chosen_book, missing, precision, tuple(prefer), catalog)
        forget()


def forget() -> None:
    """Discard all choices; each problem is chosen again at its next call."""
    with _LOCK:
        _chosen.clear()
        _untimed.clear()
        for cache in CACHES:
            cache()


def settings() -> ChoiceSettings:
    """Return the settings of the last call of `use`."""
    return _settings


def book() -> Book:
    """Return the winners in use, with the measurements of this process.

    Save them with `book().save(Path("book.json"))`.
    """
    entries = {entry.key: entry for entry in _settings.book.entries} | _measured
    return Book(_settings.book.mode, tuple(entries[key] for key in sorted(entries)))


def problem_of(operator: str, text: str) -> Operator:
    """Return the problem that a text such as "(m=64,n=64,k=64)" names, from the catalog in use."""
    return _settings.catalog.operator(operator).parse(text)


def choice_for(operator: str, text: str, index: int) -> ChosenRunner:
    """Return the runner of a problem on a device; the first call chooses it."""
    choice = _chosen.get((operator, text, index))
    return choice if choice is not None else _choose_locked(operator, text, index)


def require_no_capture(operator: str, text: str, index: int) -> None:
    """Raise UsageError if the device captures a CUDA graph, so that no kernel of a problem can be loaded."""
    if is_capturing(index):
        raise UsageError(
            f"{operator}{text}: this is the first call with these sizes, and opbench cannot load kernels while a CUDA "
            "graph is captured; make the same call once before the capture",
            kind="first-call-in-capture",
            subject=operator,
        )


def _choose_locked(operator: str, text: str, index: int) -> ChosenRunner:
    require_no_capture(operator, text, index)
    with _LOCK:
        if (operator, text, index) not in _chosen:
            opened_device = opened_device_of(index)
            _chosen[operator, text, index] = _make_choice(problem_of(operator, text), opened_device)
        return _chosen[operator, text, index]


def _make_choice(problem: Operator, opened_device: OpenedDevice) -> ChosenRunner:
    fitting = candidates(problem, opened_device)
    preferred = [c for pattern in _settings.prefer for c in fitting if is_named(c.name, pattern)]
    if preferred:
        return _first_runnable(preferred[:1], opened_device, "preferred")
    if opened_device.index == CPU:
        return _first_runnable(fitting, opened_device, "ranked first")
    entry = entry_for(problem, opened_device)
    if entry is None and _settings.missing == "torch" and has_peer(problem):
        return ChosenRunner(None, "not in the book")
    if entry is None:
        if (opened_device.index, problem.name, str(problem)) in _untimed and has_peer(problem):
            return ChosenRunner(None, "none of ours could be timed")
        return _first_runnable(fitting, opened_device, "ranked first, as nothing was measured")
    if entry.speedup is not None and entry.speedup < 1 and has_peer(problem):
        return ChosenRunner(None, "PyTorch is faster")
    winner_cases = [case for case in fitting if case.name == entry.winner.case]
    if not winner_cases:
        if has_peer(problem):
            return ChosenRunner(
                None, f"the variant of {entry.winner.case}, which the winners file names, does not exist"
            )
        return _first_runnable(fitting, opened_device, "ranked first, as the book's is not there")
    return _first_runnable(winner_cases, opened_device, "fastest in the book")


def entry_for(problem: Operator, opened_device: OpenedDevice) -> BookEntry | None:
    """Return the winners-file entry of a problem on a device; None if there is none.

    If the setting `missing` is "measure", time a missing problem first.
    """
    precisions = allowed_precisions(problem, opened_device)
    entry = book().find(problem.name, problem, gpu=opened_device.gpu, precisions=precisions)
    if entry is None and _settings.missing == "measure":
        from opbench.networks.pytorch.measuring import measure_candidates

        if (opened_device.index, problem.name, str(problem)) not in _untimed:
            entry = measure_candidates(problem, candidates(problem, opened_device), opened_device)
        if entry is not None:
            _measured[entry.key] = entry
        else:
            _untimed.add((opened_device.index, problem.name, str(problem)))
    return entry


def prepare(problems: Sequence[Operator], opened_device: OpenedDevice) -> None:
    """Compile the candidates of the problems that have no winner, in parallel, because they will be timed."""
    if opened_device.index == CPU or _settings.missing != "measure":
        return
    from opbench.networks.pytorch.measuring import compile_ahead

    winners = book()
    unknown_problems = [
        p
        for p in problems
        if not winners.find(p.name, p, gpu=opened_device.gpu, precisions=allowed_precisions(p, opened_device))
    ]
    compile_ahead([candidates(problem, opened_device) for problem in dict.fromkeys(unknown_problems)], opened_device)


def _first_runnable(cases: Sequence[Case], opened_device: OpenedDevice, why: str) -> ChosenRunner:
    """Return the first case that the device can run; raise UsageError if there is none."""
    reasons = []
    for case in cases:
        if reason := opened_device.backend.unsupported_reason(case.request()):
            reasons.append(f"{case.variant.name}: {reason}")
            continue
        try:
            return ChosenRunner(runner(case, opened_device), why)
        except OpbenchError as error:
            if len(cases) == 1:
                raise
            warnings.warn(f"{case.name} is skipped: {error}", RuntimeWarning, stacklevel=2)
            reasons.append(f"{case.variant.name}: {error}")
    raise UsageError(
        f"no variant runs on {opened_device.device} ({'; '.join(reasons[:2])}); use PyTorch for this call, and check "
        "the machine with: opbench doctor",
        kind="no-variant",
        subject=opened_device.device,
    )


# Candidates -----------------------------------------------------------------------------------------------------------


def candidates(problem: Operator, opened_device: OpenedDevice) -> list[Case]:
    """Return the cases that fit a problem in the allowed precision, as ranked by `insight.defaults`."""
    classes = {"bf16": ALLOWED_PRECISIONS["bf16"], "f16": (*ALLOWED_PRECISIONS["tf32"], "f16")}.get(
        problem.storage, allowed_precisions(problem, opened_device)
    )
    ladder = _settings.catalog.choosable_variants(problem.name)
    fitting = fitting_cases((variant for variant in ladder if variant.precision in classes), [problem])
    if not fitting:
        unmet_requirements = "; ".join(f"{v.name} {v.unmet_requirement(problem, v.configs[0])}" for v in ladder[-2:])
        raise UsageError(
            f"{problem.name}: no variant can compute "
            f"{problem}{f' ({unmet_requirements})' if unmet_requirements else ''}; use PyTorch for this call, or other "
            f"sizes ({next_command('list variants', problem.name)})",
            kind="no-variant",
            subject=problem.name,
            value=str(problem),
        )
    return rank_cases(fitting, opened_device.ranking_gpu, product=any(variant.unit for variant in ladder))


def allowed_precisions(problem: Operator, opened_device: OpenedDevice) -> tuple[str, ...]:
    """Return the precision classes that a problem's variants may use."""
    if problem.storage in ("bf16", "f16"):
        return (problem.storage,)
    switches = "tf32" if opened_device.index != CPU and _tf32(problem.name) else "f32"
    return tuple(ALLOWED_PRECISIONS[_settings.precision or switches])


def _tf32(operator: str) -> bool:
    """Return whether PyTorch's switches allow TF32 products in such a problem."""
    switch = torch.backends.cudnn.conv if operator.startswith("conv2d") else torch.backends.cuda.matmul
    precision = getattr(switch, "fp32_precision", None)
    if precision is not None:
        return str(precision) == "tf32"
    settings_of_backend = torch.backends.cudnn if operator.startswith("conv2d") else torch.backends.cuda.matmul
    return bool(settings_of_backend.allow_tf32)
