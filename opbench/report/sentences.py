"""Verdicts as sentences; a word between backticks is code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opbench import units
from opbench.ceiling import Ceilings
from opbench.frame import Row, first_rung, tied
from opbench.report.sections import Group, Section, best_configs
from opbench.results import Run
from opbench.timing import Warn

FLOOR_FACTOR = 5
"""Below this many launch floors a time tells more of the launch than of the kernel."""

STATUSES = ("right", "wrong", "failed", "invalid", "unsupported")


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as "1 case" or "3 cases"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def code(text: str) -> str:
    """A name to be set as code."""
    return f"`{text.replace('`', chr(39))}`"


def summary(run: Run) -> str:
    """The whole run in one line."""
    counts = {status: sum(r.status == status for r in run.results) for status in STATUSES}
    parts = [f"{n:,} {status}" for status, n in counts.items() if n or status in ("right", "wrong")]
    return f"{counted(len(run.results), 'case')}: {', '.join(parts)}"


def incomplete(run: Run) -> str:
    """What is missing from a run that did not end, else nothing."""
    if run.finished:
        return ""
    total = run.header.get("cases")
    of = f" of {total}" if isinstance(total, int) else ""
    held = f"it holds {len(run.results)}{of} cases"
    return f"This run did not finish: {held}. Complete it with the same command and --resume."


def verdict(section: Section, ceilings: Ceilings | None, predicting: Ceilings | None) -> list[str]:
    """What a section has to say, most important first."""
    if predicting is not None and not section.groups:
        said = [_untimed(section, predicting)]
    elif section.groups:
        said = [_fastest(section, group) for group in section.groups]
        said += [s for s in (_launch_bound(section, ceilings), _above_roof(section)) if s]
    elif section.unmeasured:
        said = [f"{_how_many_right(section)}; nothing was measured."]
    else:
        said = [f"No variant is right: {_fallen(section)}."]
    if section.groups and section.fallen:
        said.append(f"Not ranked: {_fallen(section)}.")
    return said


def _fallen(section: Section) -> str:
    return ", ".join(f"{n} {status}" for status in STATUSES[1:] if (n := section.count(status)))


def _how_many_right(section: Section) -> str:
    right, able = section.count("right"), len(section.rows) - section.count("unsupported")
    variants = len({row.variant for row in section.rows if row.status == "right"})
    of_configs = f" ({counted(right, 'config')})" if right != variants else ""
    if right == able and variants > 1:
        every = "Both" if variants == 2 else f"All {variants}"
        return f"{every} variants{of_configs} are right"
    if right == able:
        return f"The one variant{of_configs} is right"
    return f"{right} of {able} cases are right ({_fallen(section)})"


def _untimed(section: Section, predicting: Ceilings) -> str:
    if not section.count("right"):
        return f"No variant is right: {_fallen(section)}."
    text = f"{_how_many_right(section)}; times need a GPU"
    first = next((r for r in section.rows if r.predicted_best_s is not None), None)
    if first is None:
        return text + "."
    measured = "the measured" if predicting.source == "measured" else "the datasheet's"
    gpu, least = gpu_phrase(predicting), units.time(first.predicted_best_s)
    if first.bound == "compute":
        return f"{text}; on {gpu} the textbook FLOPs alone take {least} (predicted from FLOPs and {measured} ceilings)."
    return (
        f"{text}; on {gpu} no variant can take less than {least} from a cold cache "
        f"(predicted from compulsory bytes and {measured} ceilings)."
    )


def gpu_phrase(ceilings: Ceilings) -> str:
    """A GPU's name with its article, without the vendor."""
    name = ceilings.gpu.removeprefix("NVIDIA ").removeprefix("GeForce ") or "that GPU"
    return name if name.startswith("that") else f"{'an' if name[0] in 'AEFHILMNORSX' else 'a'} {name}"


def _fastest(section: Section, group: Group) -> str:
    """Such as "`vec4` is fastest: 1.83× `naive` [1.79, 1.87], 91 % of measured bandwidth."."""
    winner = group.rows[0][0]
    peers = [row for row in best_configs(row for row, _ in group.rows) if row is not winner and tied(winner, row)]
    label = "" if group.precision == "f32" else f" in {group.precision}"
    if peers:
        names = listed([code(row.name) for row in (winner, *peers[:4])])
        more = f" and {len(peers) - 4} more" if len(peers) > 4 else ""
        start = f"{names}{more} tie as fastest{label} (their 95 % intervals overlap)"
    elif len(group.rows) == 1:
        start = f"{code(winner.name)} is the only one ranked{label}: {units.time(winner.time_s)}"
    else:
        start = f"{'the library ' if winner.library else ''}{code(winner.name)} is fastest{label}"
        start = start[0].upper() + start[1:] if winner.library else start
    facts = [fact for fact in (_over_first(section, winner), _share(winner), _over_library(section, winner)) if fact]
    facts += _best_own(group, winner)
    separator = ", " if len(group.rows) == 1 and not peers else ": "
    return start + (separator + ", ".join(facts) if facts else "") + "."


def _best_own(group: Group, winner: Row) -> list[str]:
    """When a library wins: how far the best variant that is none gets."""
    own = [row for row, _ in group.rows if not row.library]
    if not winner.library or not own or own[0].speedup_over_library is None:
        return []
    return [
        f"the best without a library, {code(own[0].name)}, reaches {units.ratio(own[0].speedup_over_library)} its speed"
    ]


def _over_first(section: Section, winner: Row) -> str:
    below = {row.variant: row.builds_on for row in section.rows}
    first = first_rung(winner.variant, below)
    if first == winner.variant or winner.speedup_over_first is None:
        return ""
    interval = ""
    if winner.speedup_over_first_low and winner.speedup_over_first_high:
        ends = [
            units.ratio(end).removesuffix("×")
            for end in (winner.speedup_over_first_low, winner.speedup_over_first_high)
        ]
        interval = f" [{', '.join(ends)}]"
    return f"{units.ratio(winner.speedup_over_first)} {code(first)}{interval}"


def _share(winner: Row) -> str:
    if winner.roof_share is None:
        return ""
    roof = (
        "measured bandwidth"
        if winner.bound == "memory"
        else f"the measured {winner.precision.replace('f32', 'fp32')} rate"
    )
    return f"{units.percent(winner.roof_share)} of {roof}"


def _over_library(section: Section, winner: Row) -> str:
    libraries = sorted(
        (r for r in section.rows if r.library and r.ranked and r.precision == winner.precision),
        key=lambda r: r.time_s or 0.0,
    )
    if not libraries or winner.library or winner.speedup_over_library is None:
        return ""
    return f"{units.ratio(winner.speedup_over_library)} the library {code(libraries[0].name)}"


def _launch_bound(section: Section, ceilings: Ceilings | None) -> str:
    winner = section.winner
    floor = ceilings.launch_floor_s if ceilings else None
    if winner is None or not winner.time_s or not floor or winner.time_s >= FLOOR_FACTOR * floor:
        return ""
    return (
        f"{units.time(winner.time_s)} is within {FLOOR_FACTOR}× of an empty kernel's {units.time(floor)}: the launch "
        "weighs as much as the kernel; fuse, batch or use a CUDA graph."
    )


def _above_roof(section: Section) -> str:
    above = best_configs(
        r for g in section.groups for r, _ in g.rows if r.roof_share is not None and r.roof_share > 1.05
    )
    if not above:
        return ""
    names = listed([code(row.name) for row in above[:4]])
    return (
        f"Above 100 % of the roof: {names}. FLOPs are counted by the textbook algorithm and bytes as if all came "
        "from DRAM; a faster algorithm, tensor cores or data left in the L2 cache can pass that."
    )


def advised(warning: str) -> str:
    """A warning's name with what it means and what to do."""
    try:
        return f"{warning.replace('_', ' ')}: {Warn(warning).advice}"
    except ValueError:
        return warning


def warnings(rows: Iterable[Row]) -> list[tuple[str, list[str]]]:
    """Every warning once, with the cases that it concerns."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for warning in row.warnings:
            found.setdefault(advised(warning), []).append(row.case)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
