"""The results of a run as sentences; text between backticks is code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.report.run.predicted_bound import predicted_text, with_article
from opbench.report.run.sections import STATUSES, Group, Section, best_configs, own_and_library
from opbench.report.run.winner_lead import ratio_text, winners_and_next
from opbench.results.files import Run
from opbench.results.result import BAD_STATUSES
from opbench.results.rows import Row, first_variant, is_tie
from opbench.timing.measurement import TimingWarning

MAX_FAILING_NAMED = 3
LAUNCH_FACTOR = 5
"""Below this multiple of an empty kernel's time, the launch dominates the time."""


def code(text: str) -> str:
    """Put a name between backticks."""
    return f"`{text.replace('`', chr(39))}`"


def summary(run: Run, predicting: Peaks | None = None) -> str:
    """Return the run in one line; `predicting` are peaks to predict times from, for a run without a GPU."""
    counts = {status: sum(r.status == status for r in run.results) for status in STATUSES}
    status_texts = [f"{n:,} {status}" for status, n in counts.items() if n or status in ("right", "wrong")]
    supported = [r for r in run.results if r.status != "unsupported"]
    if predicting is None or len(supported) > counts["right"] or not supported:
        return f"{units.count_noun(len(run.results), 'case')}: {', '.join(status_texts)}"
    variants = len({(r.operator, r.variant) for r in supported})
    problems = len({(r.operator, r.problem) for r in supported})
    right = f"All {units.count_noun(variants, 'variant')} are" if variants > 1 else "The one variant is"
    start = f"{right} right on {units.count_noun(problems, 'problem')}"
    return f"{start} ({units.count_noun(len(run.results), 'case')}: {', '.join(status_texts)})."


def library_comparison(all_sections: Iterable[Section]) -> str:
    """Return on how many problems the best own variant beats the fastest library; "" for fewer than two problems."""
    counts = {"own": 0, "library": 0, "tie": 0}
    for section in all_sections:
        if (pair := own_and_library(section)) is None:
            continue
        faster, slower = sorted(pair, key=lambda row: row.time_s or 0.0)
        counts["tie" if is_tie(faster, slower) else "library" if faster.library else "own"] += 1
    if sum(counts.values()) < 2:
        return ""
    text = f"the best own variant is faster on {counts['own']}, the library on {counts['library']}"
    tie_text = f"; {counts['tie']} tie" if counts["tie"] else ""
    return f"Of {sum(counts.values())} problems with a library's time, {text}{tie_text}."


def failure_summary(run: Run) -> str:
    """Return the number of failing cases and their variants, such as "1 of 9 cases is not right: 1 wrong (`relu/a`).".

    "" without any; of more than `MAX_FAILING_NAMED` variants, only the number of cases is named.
    """
    statuses = [r.status for r in run.results if r.status != "unsupported"]
    counts = {bad: sum(status == bad for status in statuses) for bad in BAD_STATUSES}
    if not (failing := sum(counts.values())):
        return ""
    failing_text = ", ".join(f"{n:,} {status}" for status, n in counts.items() if n)
    verb = "is" if failing == 1 else "are"
    variants = list(dict.fromkeys(f"{r.operator}/{r.variant}" for r in run.results if r.status in counts))
    names = f" ({units.join_words([*map(code, variants)])})" if len(variants) <= MAX_FAILING_NAMED else ""
    return f"{failing:,} of {units.count_noun(len(statuses), 'case')} {verb} not right: {failing_text}{names}."


def lower_bound_explanation(predicting: Peaks) -> str:
    """Return an explanation of the lower bounds on a page without times."""
    peaks_text = "measured peaks" if predicting.source == "measured" else "peaks of its datasheet"
    launch_s = predicting.launch_floor_s
    launch_text = f", and at least the launch of an empty kernel, {units.time(launch_s)}" if launch_s else ""
    return (
        f"A lower bound is the least time that {gpu_phrase(predicting)} needs: the FLOPs and compulsory bytes of the "
        f"problem, and the traffic of the variant, over the {peaks_text}{launch_text}."
    )


MAX_LEFT_OUT = 3
"""Most variants named for a reason; for more, only their number is shown."""


def skipped_variants_sentence(reasons: Mapping[str, Sequence[str]]) -> str:
    """Return the variants that do not support a problem, and the requirement of each; "" without any."""
    reason_texts = []
    for reason, names in reasons.items():
        more_text = [f"{len(names) - MAX_LEFT_OUT} more"] if len(names) > MAX_LEFT_OUT else []
        reason_texts.append(
            f"{units.join_words([*map(code, names[:MAX_LEFT_OUT]), *more_text])} ({_requirement(reason)})"
        )
    return f"Skipped: {'; '.join(reason_texts)}." if reason_texts else ""


def _requirement(reason: str) -> str:
    """Return the requirement in a recorded reason, such as "requires cols % 4 == 0"."""
    requirement = reason.partition(" (here ")[0]
    verb, _, rest = requirement.partition(" ")
    return f"requires {rest}" if verb in ("needs", "supports") else requirement


def missing_cases_text(run: Run) -> str:
    """Return how many cases of an unfinished run are missing; "" for a finished run."""
    if run.finished:
        return ""
    total = "" if run.header.cases is None else f" of {run.header.cases}"
    contained = f"it holds {len(run.results)}{total} cases"
    return f"This run did not finish: {contained}. Complete it with the same command and --resume."


def verdict(section: Section, ceilings: Peaks | None, predicting: Peaks | None) -> list[str]:
    """Return the sentences at the top of a section, the most important first."""
    if predicting is not None and not section.groups:
        sentences = [_untimed(section)]
    elif section.groups:
        sentences = [text for group in section.groups for text in own_variant_ranks(group)]
        sentences += [_fastest(section, group) for group in section.groups]
        sentences += [s for s in (_launch_bound(section, ceilings),) if s]
    elif section.unmeasured:
        sentences = [f"{_how_many_right(section)}; nothing was measured."]
    else:
        sentences = [f"No variant is right: {_failure_counts(section)}."]
    return sentences


def fault(section: Section) -> str:
    """Return how many cases of a problem are not right; "" if all are."""
    failures = section.failures
    if not failures:
        return ""
    supported = len(section.rows) - len(section.unsupported)
    counts_text = ", ".join(f"{n} {s}" for s in BAD_STATUSES if (n := section.count(s)))
    verb = "is" if len(failures) == 1 else "are"
    return f"{len(failures)} of {units.count_noun(supported, 'case')} {verb} not right: {counts_text}."


def _failure_counts(section: Section) -> str:
    return ", ".join(f"{n} {status}" for status in STATUSES[1:] if (n := section.count(status)))


def _how_many_right(section: Section) -> str:
    right, supported = section.count("right"), len(section.rows) - section.count("unsupported")
    variants = len({row.variant for row in section.rows if row.status == "right"})
    of_configs = f" ({units.count_noun(right, 'config')})" if right != variants else ""
    if right == supported and variants > 1:
        all_text = "Both" if variants == 2 else f"All {variants}"
        return f"{all_text} variants{of_configs} are right"
    if right == supported:
        return f"The one variant{of_configs} is right"
    return f"{right} of {supported} cases are right ({_failure_counts(section)})"


def _untimed(section: Section) -> str:
    if not section.count("right"):
        return f"No variant is right: {_failure_counts(section)}."
    bound = predicted_text(section.rows)
    return f"{_how_many_right(section)}; times need a GPU" + (f"; {bound}" if bound else "") + "."


def gpu_name(ceilings: Peaks) -> str:
    """Return the name of a GPU without its vendor."""
    return ceilings.gpu.removeprefix("NVIDIA ").removeprefix("GeForce ") or "that GPU"


def gpu_phrase(ceilings: Peaks) -> str:
    """Return the name of a GPU with its article and without its vendor."""
    return with_article(gpu_name(ceilings)) if ceilings.gpu else gpu_name(ceilings)


def own_variant_ranks(group: Group) -> list[str]:
    """Return a sentence for each of the user's variants that is slower than the fastest: time, rank and ratio."""
    winner = group.rows[0][0]
    ranks = {row.case: rank.rstrip("=") for row, rank in group.rest or group.rows}
    return [
        f"{code(row.variant)} takes {units.time(row.time_s)} (rank {ranks[row.case]} of {len(ranks)}): "
        + (
            f"a tie with {_row_name(winner)}."
            if is_tie(winner, row)
            else f"{units.ratio(row.time_s / winner.time_s)} as long as {_row_name(winner)}."
        )
        for row in best_configs(row for row, _ in group.rows if row.own)
        if row is not winner and row.time_s and winner.time_s
    ]


def _fastest(section: Section, group: Group) -> str:
    """Return a sentence such as "`vec4` is fastest at 12.3 µs: 1.83× as fast as the first variant `naive` …"."""
    winner, runner_up = group.rows[0][0], winners_and_next(group)[1]
    tied_rows = [row for row in best_configs(row for row, _ in group.rows) if row is not winner and is_tie(winner, row)]
    tied_rows = [row for row in tied_rows if row.variant != winner.variant]
    is_single = len({row.variant for row, _ in group.rows}) == 1
    label = "" if group.precision == "f32" else f" in {group.precision}"
    time_text, lead = units.time(winner.time_s), ""
    if tied_rows:
        names = units.join_words([_row_name(row) for row in (winner, *tied_rows[:4])])
        more_text = f" and {len(tied_rows) - 4} more" if len(tied_rows) > 4 else ""
        opening = f"{names}{more_text} tie as fastest{label} at {time_text} (their 95 % intervals overlap)"
    elif is_single:
        opening = f"{code(winner.variant)} is the only one ranked{label}: {time_text}"
    else:
        lead = ratio_text(winner, runner_up) if runner_up else ""
        lead_text = f" and wins by {lead} over {_row_name(runner_up)}" if runner_up and lead else ""
        opening = f"{_row_name(winner)} is fastest{label} at {time_text}{lead_text}"
    over_library = "" if runner_up and runner_up.library else _library_speedup_text(section, winner)
    first = _over_first(section, winner)
    if runner_up and lead and runner_up.variant == _first_variant_of(section, winner):
        first = ""  # the lead over the runner-up says the same
    phrases = [phrase for phrase in (first, _share(winner), over_library) if phrase]
    separator = ", " if is_single else ": "
    text = opening[0].upper() + opening[1:] if winner.library else opening
    return text + (separator + ", ".join(phrases) if phrases else "") + "." + _best_own(section, group, winner)


def _row_name(row: Row) -> str:
    return f"the library {code(row.variant)}" if row.library else code(row.variant)


def _best_own(section: Section, group: Group, winner: Row) -> str:
    """Return a sentence on the best variant that is not a library, if a library is fastest; otherwise ""."""
    best_own_row = next((row for row, _ in group.rows if not row.library), None)
    if not winner.library or best_own_row is None or best_own_row.speedups.over_library is None:
        return ""
    phrases = [phrase for phrase in (_over_first(section, best_own_row), _share(best_own_row)) if phrase]
    details = f": {', '.join(phrases)}" if phrases else ""
    library_share = units.percent(best_own_row.speedups.over_library)
    best = f" {code(best_own_row.variant)}, the best without a library,"
    return f"{best} reaches {library_share} of {code(winner.variant)}{details}."


def _first_variant_of(section: Section, row: Row) -> str:
    """Return the first variant of the ladder that leads to a row's variant."""
    return first_variant(row.variant, {other.variant: other.builds_on for other in section.rows})


def _over_first(section: Section, winner: Row) -> str:
    first_name = _first_variant_of(section, winner)
    speedups = winner.speedups
    if first_name == winner.variant or speedups.over_first is None:
        return ""
    interval = ""
    if speedups.over_first_low and speedups.over_first_high:
        interval_ends = [
            units.ratio(end).removesuffix("×") for end in (speedups.over_first_low, speedups.over_first_high)
        ]
        interval = f" [{', '.join(interval_ends)}]"
    return f"{units.ratio(speedups.over_first)} as fast as the first variant {code(first_name)}{interval}"


def _share(winner: Row) -> str:
    if winner.peak_share is None:
        return ""
    peak_name = "measured bandwidth" if winner.bound == "memory" else f"the measured {units.unit(winner.unit)} rate"
    return f"{units.percent(winner.peak_share)} of {peak_name}"


def _library_speedup_text(section: Section, winner: Row) -> str:
    libraries = sorted(
        (r for r in section.rows if r.library and r.ranked and r.precision == winner.precision),
        key=lambda r: r.time_s or 0.0,
    )
    if not libraries or winner.library or winner.speedups.over_library is None:
        return ""
    return f"{units.ratio(winner.speedups.over_library)} as fast as the library {code(libraries[0].variant)}"


def _launch_bound(section: Section, ceilings: Peaks | None) -> str:
    winner = section.winner
    launch_s = ceilings.launch_floor_s if ceilings else None
    if winner is None or not winner.time_s or not launch_s or winner.time_s >= LAUNCH_FACTOR * launch_s:
        return ""
    return (
        f"{units.time(winner.time_s)} is within {LAUNCH_FACTOR}× of an empty kernel's {units.time(launch_s)}: the "
        "launch takes as long as the kernel; fuse, batch or use a CUDA graph."
    )


def warning_advice(warning: str) -> str:
    """Return a warning's name, its meaning, and the action to take."""
    try:
        return f"{warning.replace('_', ' ')}: {TimingWarning(warning).advice}"
    except ValueError:
        return warning


def warnings(rows: Iterable[Row]) -> list[tuple[str, list[str]]]:
    """Return each warning once, with the cases that have it."""
    result: dict[str, list[str]] = {}
    for row in rows:
        for warning in row.warnings:
            result.setdefault(warning_advice(warning), []).append(row.case)
    return sorted(result.items(), key=lambda item: (-len(item[1]), item[0]))
