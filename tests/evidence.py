"""What is committed of measurements on GPUs: the data of each run, the pictures that documents show, and some pages.

python tests/evidence.py [FOLDER]    # pack runs and pictures below FOLDER, remove what `opbench report` draws again
python tests/evidence.py --uncounted RUN    # print the cases of a run that have no counters yet
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from opbench.records import plain_name, unpacked
from opbench.results.files import FILE, read_run

ROOT = Path(__file__).parent.parent
LINES = (FILE, "experiments.jsonl")
RECORDS = ("network.json", "train.json", "plan.json", "selftest.json")
WINNERS = "winners.json"
"""Every Python can unpack gzip, and opbench reads this file for each network."""
TEXT_FILTERS = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26, "lc": 4, "lp": 0, "pb": 0}
]
"""Settings of xz for text: 0.6 % smaller than the preset alone."""
COLOURS = 16
REPORTS = (ROOT / "reports/h100", ROOT / "reports/h200")
PAGES = (
    "h100/selftest/selftest.html",
    "h100/selftest-clock/selftest.html",
    "h100/stalls/matmul-shared_tile.html",
)
"""The pages that the guide links to, for readers without opbench."""


def loose(folders: Iterable[Path] = REPORTS) -> list[Path]:
    """Return the records that take ten times what they could."""
    names = {WINNERS, *(name + suffix for name in (*LINES, *RECORDS) for suffix in ("", ".gz"))}
    return sorted(path for folder in folders for path in folder.rglob("*.*") if path.name in names)


def shown() -> set[Path]:
    """Pictures that a document shows."""
    documents = [
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("variants/**/README.md"),
        *(ROOT / "reports").rglob("*.md"),
    ]
    links = ((page, link) for page in documents for link in re.findall(r"\]\(([^)#\s]+\.png)", page.read_text()))
    return {(page.parent / link).resolve() for page, link in links}


def redrawn(folders: Iterable[Path] = REPORTS) -> list[Path]:
    """Pages and pictures that `opbench report FOLDER` draws again and that nothing shows."""
    kept = {path.resolve() for path in (*shown(), *(ROOT / "reports" / page for page in PAGES))}
    drawn = (path for folder in folders for kind in ("html", "png", "log") for path in folder.rglob(f"*.{kind}"))
    return sorted(path for path in drawn if path.resolve() not in kept)


def grouped(text: str) -> str:
    """Return the lines of a run with counts by kind and variant: alike lines together take a quarter less, packed."""
    lines = text.splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    kinds = [record["type"] for record in records]
    if not {"traffic", "counters"} & set(kinds) or kinds.count("run") != 1 or kinds[0] != "run":
        return text
    operators = list(dict.fromkeys(record["operator"] for record in records if "operator" in record))

    def place(index: int) -> tuple[int, str, int, str]:
        case = records[index].get("case")
        if not case:
            return (0 if kinds[index] == "run" else 2), "", 0, ""
        operator, _, rest = case.partition("/")
        return 1, kinds[index], operators.index(operator), re.split(r"[\[(]", rest)[0]

    return "".join(lines[index] for index in sorted(range(len(lines)), key=place))


def uncounted(folder: Path) -> list[str]:
    """Return the cases of a run whose counters are missing; a case that is not right has none."""
    run = read_run(folder)
    return [r.case for r in run.results if r.status == "right" and r.case not in run.counters]


def with_rounded_clocks(text: str) -> str:
    """Return the lines of a run with the clock of each sample in whole megahertz, a sixth of the packed size less.

    The clock of a sample is known to about a thousandth: its timer counts microseconds.
    """
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        record = json.loads(line)
        measurement = record.get("measurement") or {}
        if clocks := measurement.get("clocks_hz"):
            measurement["clocks_hz"] = [clock and float(round(clock, -6)) for clock in clocks]
            lines[index] = json.dumps(record, ensure_ascii=False) + "\n"
    return "".join(lines)


def pack_record(path: Path) -> None:
    """Store the lines of a run, or a record without its spaces, in packed form."""
    content = unpacked(path)
    if plain_name(path) == FILE:
        content = grouped(with_rounded_clocks(content.decode())).encode()
    elif plain_name(path) in RECORDS:
        content = json.dumps(json.loads(content), separators=(",", ":"), ensure_ascii=False).encode()
    if path.name == WINNERS:
        path.with_name(f"{WINNERS}.gz").write_bytes(gzip.compress(content, mtime=0))
    else:
        small = lzma.compress(content, check=lzma.CHECK_CRC32, filters=TEXT_FILTERS)
        path.with_name(f"{plain_name(path)}.xz").write_bytes(small)
    path.unlink()


def pack_picture(path: Path) -> None:
    """Store a picture with 16 colours, a fifth of its size: charts have few."""
    with Image.open(path) as picture:
        if picture.mode != "P" or picture.getcolors(COLOURS) is None:
            picture.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
                path, optimize=True
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--uncounted"]:
        for case in uncounted(Path(sys.argv[2])):
            print(case)
        sys.exit()
    chosen = [Path(name) for name in sys.argv[1:]] or REPORTS
    for path in loose(chosen):
        pack_record(path)
    for path in redrawn(chosen):
        path.unlink()
    for path in (path for folder in chosen for path in folder.rglob("*.png")):
        pack_picture(path)
