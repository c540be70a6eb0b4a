"""The page of `opbench profile --source`: hot lines, source with machine code, and a remedy for each stall reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from opbench import units
from opbench.insight.nsight.charging import RULES, Charge
from opbench.insight.nsight.operands import read_operands
from opbench.insight.source_profile import ProfiledKernel, ProfiledLine, Remedy, SourceProfile
from opbench.insight.stalls import STALLS, issues_or_could_issue
from opbench.kernels.mechanism import MECHANISMS
from opbench.report.speed_of_light import limit_bars
from opbench.report.template import render_template, write_page

MAX_COLOURS = 7
"""Most reasons with a colour of their own; the others share one."""
CONTEXT_LINES = 3
"""Lines shown above and below a line with samples, in long files."""
MAX_WHOLE_FILE_LINES = 400
"""A file of at most this many lines is shown completely."""
MAX_NAMED = 3
"""Most reasons that are named at one line."""
MIN_SHOWN_SHARE = 0.01
"""Smallest share that a bar or a list of causes shows."""


@dataclass(frozen=True)
class Segment:
    """One coloured part of a bar."""

    colour: int
    """Number of the colour, from 1 on; 0 for reasons without one."""
    width: float
    """Percent of the bar's full width."""
    text: str


@dataclass(frozen=True)
class _Scale:
    """The colour of each stall reason, and the number of samples at which a bar is full."""

    colours: Mapping[str, int]
    full: int

    def bar(self, counts: Mapping[str, int]) -> list[Segment]:
        """Return the segments of a bar, the largest reason first; omit segments too narrow to see."""
        total = sum(counts.values())
        return [
            Segment(
                self.colours.get(reason, 0),
                round(100 * count / self.full, 2) if self.full else 0.0,
                f"{reason_title(reason)} {units.percent(count / total)}",
            )
            for reason, count in counts.items()
            if count >= MIN_SHOWN_SHARE * self.full
        ]


def reason_title(reason: str) -> str:
    """Return the name of a stall reason in words."""
    return STALLS[reason].title if reason in STALLS else reason.replace("_", " ")


def summary(profile: SourceProfile) -> str:
    """Return a sentence with the share of waiting samples, the main reason and the hottest line."""
    total = profile.total
    if not total:
        return "No samples: the kernel is too short; take a larger problem."
    waiting = sum(count for reason, count in profile.reasons.items() if not issues_or_could_issue(reason))
    sentences = [f"Warps wait in {units.percent(waiting / total)} of {total:,} samples"]
    main = next((reason for reason in profile.reasons if not issues_or_could_issue(reason)), None)
    if main is not None:
        sentences.append(f"mostly for {reason_title(main)} ({units.percent(profile.reasons[main] / total)})")
    _, line = profile.hottest(1)[0]
    sentences.append(f"the hottest line is {line.place} ({units.percent(line.total / total)})")
    return "; ".join(sentences) + "."


def agreement_sentence(profile: SourceProfile) -> str:
    """Return a sentence on whether all sums agree with the profiler's totals."""
    if not profile.compared:
        return "The report has no totals to compare the sums with."
    if not profile.mismatches:
        return (
            f"All sums by line, instruction and reason equal the profiler's own totals ({profile.compared} compared)."
        )
    texts = [
        f"{mismatch.quantity} of {mismatch.kernel}: {mismatch.summed:,} here, {mismatch.total:,} by the profiler"
        for mismatch in profile.mismatches
    ]
    return "Sums differ from the profiler's totals: " + "; ".join(texts) + "."


def reasons_text(counts: Mapping[str, int], total: int) -> str:
    """Return the main stall reasons with their shares of `total`, such as "long scoreboard 31 %, wait 4 %"."""
    shown_counts = list(counts.items())[:MAX_NAMED]
    return ", ".join(
        f"{reason_title(reason)} {units.percent(count / total)}" for reason, count in shown_counts if total
    )


def waited_text(kernel: ProfiledKernel, line: ProfiledLine) -> str:
    """Return the lines that wait for results of a line, such as "lines 31 and 30 wait for it"; empty without any."""
    locations = dict.fromkeys(
        f"{line_number}" if file == line.file else f"{PurePath(file).name}:{line_number}"
        for (file, line_number), _, samples in kernel.waited_at(line)
        if line_number and samples >= 0.1 * line.total
    )
    names = list(locations)[:MAX_NAMED]
    if not names:
        return ""
    return f"waited for at line{'s' if names[1:] else ''} {units.join_words(names)}"


def remedy_lines(remedy: Remedy, total: int) -> dict[str, object]:
    """Return the text on one stall reason: share, meaning, remedy, causes and variants."""
    stall = STALLS.get(remedy.reason)
    causes = [
        f"{name} {units.percent(count / remedy.samples)}"
        for name, count in remedy.causes.items()
        if count >= MIN_SHOWN_SHARE * remedy.samples
    ]
    mechanisms = [
        {"name": name, "text": MECHANISMS[name], "variants": list(remedy.variants.get(name, ()))[:3]}
        for name in remedy.mechanisms[:4]
    ]
    return {
        "name": remedy.reason,
        "title": reason_title(remedy.reason),
        "share": units.percent(remedy.samples / total) if total else "–",
        "meaning": stall.meaning if stall else "The profiler names this reason; the table of opbench lacks it.",
        "remedy": stall.remedy if stall else "",
        "causes": ", ".join(causes),
        "mechanisms": mechanisms,
    }


def write_source(profile: SourceProfile, path: Path) -> Path:
    """Write the page of a source profile to `path`; return the path."""
    stall_reasons = [reason for reason in profile.reasons if not issues_or_could_issue(reason)]
    colours = {reason: index for index, reason in enumerate(stall_reasons[:MAX_COLOURS], start=1)}
    total = profile.total
    by_rule: dict[str, int] = {}
    for kernel in profile.kernels:
        for charge in kernel.charges:
            by_rule[charge.rule] = by_rule.get(charge.rule, 0) + charge.samples
    page = render_template(
        "source.html.j2",
        title=f"Where warps wait: {profile.case}",
        profile=profile,
        summary=summary(profile),
        check=agreement_sentence(profile),
        whole=_Scale(colours, total).bar(profile.reasons),
        legend=[(colours.get(r, 0), reason_title(r), r, units.percent(n / total)) for r, n in profile.reasons.items()],
        bars=limit_bars(profile.bounds, profile.time_s, counted=True),
        hot=_hot_rows(profile, colours),
        kernels=[_kernel(index, kernel, colours, total) for index, kernel in enumerate(profile.kernels)],
        reasons=[remedy_lines(remedy, total) for remedy in profile.remedies],
        explained={remedy.reason for remedy in profile.remedies},
        rules=[(RULES[rule], units.percent(by_rule[rule] / total)) for rule in RULES if by_rule.get(rule)],
    )
    write_page(path, page)
    return path


def _hot_rows(profile: SourceProfile, colours: Mapping[str, int]) -> list[dict[str, object]]:
    hottest = profile.hottest()
    scale = _Scale(colours, max((line.total for _, line in hottest), default=0))
    kernel_numbers = {kernel.name: kernel_index for kernel_index, kernel in enumerate(profile.kernels)}
    return [
        {
            "share": units.percent(line.total / profile.total),
            "bar": scale.bar(line.charged),
            "place": line.place,
            "anchor": _line_anchor(kernel_numbers[kernel.name], kernel, line.file, line.line),
            "text": line.text.strip(),
            "reasons": reasons_text(line.charged, line.total),
            "waited": waited_text(kernel, line),
        }
        for kernel, line in hottest
        if line.total
    ]


def _line_anchor(kernel_index: int, kernel: ProfiledKernel, file: str, line: int) -> str:
    files = list(kernel.sources)
    return f"k{kernel_index}f{files.index(file)}l{line}" if file in files and line else f"k{kernel_index}"


def _kernel(kernel_index: int, kernel: ProfiledKernel, colours: Mapping[str, int], total: int) -> dict[str, object]:
    """Return one kernel's part of the page: its files with a bar for each line, and its instructions."""
    lines = {(line.file, line.line): line for line in kernel.lines}
    scale = _Scale(colours, max((line.total for line in kernel.lines), default=0))
    first_instruction: dict[tuple[str, int], int] = {}
    for index, instruction in enumerate(kernel.instructions):
        first_instruction.setdefault((instruction.file, instruction.line), index)
    files = sorted(kernel.sources, key=lambda file: -sum(line.total for line in kernel.lines if line.file == file))
    return {
        "anchor": f"k{kernel_index}",
        "name": kernel.name,
        "share": units.percent(kernel.total / total) if total else "–",
        "launches": kernel.launches,
        "files": [
            {
                "name": PurePath(file).name,
                "lines": [
                    {
                        "number": line,
                        "text": kernel.sources[file].get(line, "") if line else "",
                        "anchor": _line_anchor(kernel_index, kernel, file, line),
                        "instruction": first_instruction.get((file, line)),
                        "bar": scale.bar(mark.charged) if (mark := lines.get((file, line))) else [],
                        "share": units.percent(mark.total / total) if mark and mark.total and total else "",
                        "reasons": reasons_text(mark.charged, mark.total) if mark and mark.total else "",
                    }
                    for line in _shown_lines(kernel, file)
                ],
            }
            for file in files
        ],
        "instructions": _instruction_rows(kernel_index, kernel, colours, total),
    }


def _shown_lines(kernel: ProfiledKernel, file: str) -> list[int]:
    """Return the lines of a file to show; a 0 marks omitted lines."""
    source_lines = sorted(kernel.sources[file])
    if len(source_lines) <= MAX_WHOLE_FILE_LINES and file == next(iter(kernel.sources)):
        return source_lines
    sampled_lines = {line.line for line in kernel.lines if line.file == file}
    context_lines = {
        line_number + offset for line_number in sampled_lines for offset in range(-CONTEXT_LINES, CONTEXT_LINES + 1)
    }
    shown_lines: list[int] = []
    for line_number in (line_number for line_number in source_lines if line_number in context_lines):
        if shown_lines and line_number > shown_lines[-1] + 1:
            shown_lines.append(0)
        shown_lines.append(line_number)
    return shown_lines


def _instruction_rows(
    kernel_index: int, kernel: ProfiledKernel, colours: Mapping[str, int], total: int
) -> list[dict[str, object]]:
    charged, causes = kernel.charged_by_instruction, kernel.causes_by_instruction
    scale = _Scale(colours, max((sum(counts.values()) for counts in charged.values()), default=0))
    first_address = kernel.instructions[0].address if kernel.instructions else 0
    rows: list[dict[str, object]] = []
    for index, instruction in enumerate(kernel.instructions):
        reason_counts = charged.get(index, {})
        samples = sum(reason_counts.values())
        rows.append(
            {
                "anchor": f"k{kernel_index}i{index}",
                "offset": f"{instruction.address - first_address:04x}",
                "line": instruction.line,
                "line_anchor": _line_anchor(kernel_index, kernel, instruction.file, instruction.line),
                "text": instruction.text.rstrip(" ;"),
                "bar": scale.bar(reason_counts),
                "share": units.percent(samples / total) if samples >= 0.0005 * total and total else "",
                "waits": _wait_links(kernel_index, kernel, causes.get(index, []), sum(instruction.samples.values())),
            }
        )
    return rows


def _wait_links(
    kernel_index: int, kernel: ProfiledKernel, charges: Sequence[Charge], samples: int
) -> list[tuple[str, str]]:
    """Return links to the instructions that an instruction mostly waits for, as anchor and text."""
    result = []
    for charge in charges[:2]:
        if charge.samples < 0.2 * samples:
            continue
        text = read_operands(kernel.instructions[charge.cause].text).opcode
        result.append((f"k{kernel_index}i{charge.cause}", text))
    return result
