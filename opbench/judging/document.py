"""Define the verdict document as typed data with a published JSON Schema, and read and write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from opbench.judging.sizes import Origin
from opbench.judging.task import Task
from opbench.paths import write_file
from opbench.records import read_record, to_json
from opbench.results.header import Revision

FORMAT = 1
"""The version of the format; it changes when a field is renamed or removed."""
FILE, PAGE = "verdict.json", "verdict.html"
"""The names of the document and of its HTML page in the folder of a judgement."""
MAKE_COMMAND = "make one: opbench judge KERNEL.cu --out DIR"
"""The end of the error message for a file that is no verdict."""

Overall = Literal["accepted", "refused", "not decided"]
Status = Literal["passed", "failed", "not decided"]
Effect = Literal["refused", "none seen", "not decided"]


@dataclass(frozen=True)
class FileHash:
    """A file that was judged, with the hash of its content."""

    path: str
    """The path as the user named it; for a shipped file, the same path on every machine."""
    sha256: str


@dataclass(frozen=True)
class JudgedVariant:
    """One variant of a submitted file."""

    id: str
    """Operator and name, such as "relu/mine"."""
    precision: str
    """The precision class that its header claims."""
    product: str = ""
    """The operand type of tensor cores that its header claims; empty if the precision class implies the type."""


@dataclass(frozen=True)
class Submission:
    """The judged kernels, with the operator whose reference judged them."""

    targets: tuple[str, ...]
    """The kernels as the user named them."""
    files: tuple[FileHash, ...]
    """The kernels and every header that they include."""
    variants: tuple[JudgedVariant, ...]
    operator: str
    operator_file: FileHash
    """The file with the reference."""
    task: Task
    """The task, from a file or from options of the command line."""
    task_file: FileHash | None = None


@dataclass(frozen=True)
class Fault:
    """A finding or another fault of one case; the first case with this fault is named."""

    code: str
    message: str
    case: str
    file: str = ""
    line: int = 0
    source: str = ""
    """The text of the line."""
    inputs: str = ""
    """The run that failed: empty for normal inputs, else "integers", a kind of special inputs, or "relaunch"."""
    cases: int = 1
    """Number of cases with this fault."""

    @property
    def place(self) -> str:
        """Return the file and the line, such as "my.cu:12"; "" if they are unknown."""
        return f"{self.file}:{self.line}" if self.file and self.line else ""


@dataclass(frozen=True)
class Compiles:
    """Whether the kernels compile, on the CPU and for a GPU."""

    status: Status
    summary: str
    architectures: tuple[str, ...] = ()
    """GPUs for which NVRTC compiled the kernels, such as "sm_90"."""
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class MemorySafe:
    """Whether every access lies in the case's own memory, is aligned and reads initialised memory."""

    status: Status
    summary: str
    traced: int = 0
    """Number of cases in which every memory access was traced."""
    cases: int = 0
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class RaceFree:
    """Whether the result is independent of the order of threads and blocks."""

    status: Status
    summary: str
    traced: int = 0
    cases: int = 0
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class JudgedSize:
    """One problem that was judged."""

    problem: str
    origin: Origin
    """"named" by the task, an "example" of the operator, or drawn: "random", or next to a "boundary" of a tile."""


@dataclass(frozen=True)
class Right:
    """Whether outputs equal the reference within the tolerance, in every launch."""

    status: Status
    summary: str
    cases: int = 0
    right: int = 0
    problems: tuple[JudgedSize, ...] = ()
    special_inputs: tuple[str, ...] = ()
    """The kinds of special inputs that the operator allows; traced cases ran on each."""
    exact_on_integers: int = 0
    """Number of cases that were exact on small whole numbers."""
    worst_error: float | None = None
    """Largest |out - reference| divided by the magnitude of the terms, over all right cases."""
    allowed_error: float | None = None
    """The tolerance of the case with that error."""
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class TimedCase:
    """The measured time of one case, in seconds."""

    case: str
    problem: str
    median_s: float
    low_s: float
    high_s: float
    """95 % interval of the median."""
    samples: int
    mode: str
    peak_share: float | None = None
    """Rate divided by the rate that the measured peaks of this GPU allow; None without peaks."""
    bound: str = ""
    """The peak that sets the lower bound: "memory" or "compute"."""


@dataclass(frozen=True)
class Timed:
    """The GPU time of the submitted kernels."""

    status: Status
    summary: str
    gpu: str = ""
    times: tuple[TimedCase, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Rival:
    """A library's case, or the best known variant, on one problem."""

    kind: Literal["library", "best known"]
    case: str
    problem: str
    gpu: str
    median_s: float
    low_s: float
    high_s: float
    measured_here: bool
    """Whether this judgement measured it; otherwise a committed run did."""
    speedup: float | None = None
    """The rival's time divided by that of the fastest submitted case; None if the two were not measured together."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    """The range of the speedup that follows from the 95 % intervals of the two medians."""


@dataclass(frozen=True)
class Compared:
    """How the time of the kernel compares with its rivals: the library and the best known variant."""

    status: Status
    summary: str
    rivals: tuple[Rival, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Sign:
    """A sign of cheating: instructions of one source line."""

    code: str
    title: str
    why: str
    kernel: str
    file: str
    line: int
    source: str
    """The text of the line."""
    instruction: str
    levels: tuple[str, ...]
    """"PTX", "SASS" or both."""
    count: int
    effect: Effect
    """Whether a refusal shows an effect of the sign; "not decided" if that effect could not be judged."""
    detail: str = ""


@dataclass(frozen=True)
class Signs:
    """The signs of cheating in PTX and SASS. A sign is a note; an effect on time or result makes it a refusal."""

    status: Status
    summary: str
    architecture: str = ""
    seen: tuple[Sign, ...] = ()


@dataclass(frozen=True)
class NextStep:
    """The next step for the author of the kernel."""

    sentence: str
    command: str = ""


@dataclass(frozen=True)
class JudgedCase:
    """The outcome of one case on one backend."""

    case: str
    backend: str
    status: str
    code: str = ""
    """The code of the refusal; empty for a case that is right."""


@dataclass(frozen=True)
class Judged:
    """The machine and the tools that judged; `opbench verify` does not compare these fields."""

    at: str
    """Time of the start in UTC."""
    opbench: str
    """The version of opbench."""
    revision: Revision | None
    """The commit of opbench; None if opbench does not run from a repository."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Processor, GPU, driver, compilers and their versions."""


@dataclass(frozen=True)
class Settings:
    """The options that decide a verdict, in addition to the task and the seed."""

    backend: str
    """"cpu", or "cuda" if the kernels ran on a GPU, too."""
    gpu: str
    """The GPU for which NVRTC compiled the kernels, as named with --gpu."""
    drawn: int
    """Number of random and of boundary sizes."""
    time_limit_s: float
    variants: tuple[str, ...] = ()
    """Extra folders of variants."""
    trust: bool = False
    """Whether Python files of the user were loaded."""
    no_cage: bool = False
    """Whether the kernels ran on the CPU without a cage. A verdict without this field and with `trust` did, too."""


@dataclass(frozen=True)
class VerdictDocument:
    """The verdict on a submitted kernel."""

    verdict: int
    """The version of this format: 1."""
    overall: Overall
    code: str
    """The code of the refusal; empty if the kernel is not refused. docs/judging.md lists the codes."""
    reason: str
    """The answer in a sentence."""
    lacking: tuple[str, ...]
    """The parts that were not judged, each with the reason, such as the time without a GPU."""
    next_step: NextStep
    seed: int
    """The seed of every input, drawn size and judged launch; it is secret until the verdict."""
    seed_given: bool
    """Whether the seed was given, as in a replay, so that the author may have known it."""
    settings: Settings
    submission: Submission
    compiles: Compiles
    memory_safe: MemorySafe
    race_free: RaceFree
    right: Right
    timed: Timed
    compared: Compared
    signs: Signs
    cases: tuple[JudgedCase, ...]
    judged: Judged


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    result: dict[str, Any] = json.loads(json.dumps(msgspec.json.schema(VerdictDocument)))  # Tuples become lists.
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "opbench verdict", **result}


def to_text(document: VerdictDocument) -> str:
    """Return the document as JSON text that ends with a newline."""
    return json.dumps(to_json(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_document(document: VerdictDocument, folder: Path) -> Path:
    """Write the document into a folder and return its path; raise EnvironmentFault if the system refuses."""
    path = folder / FILE
    write_file(path, to_text(document).encode(), "choose another --out DIR", parents=True)
    return path


def read_document(path: Path) -> VerdictDocument:
    """Return the document of a file; raise UsageError if the file is not a verdict of this format."""
    return read_record(VerdictDocument, path, FORMAT, MAKE_COMMAND, key="verdict")
