"""The process that compiles and reads submitted code: confined it finds the same, and reaches nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.cage.facts import available
from opbench.judging.code import CompiledCode, start_reading_code
from opbench.kernels.case import Case
from opbench.running.targets import own_variants
from support.common import CATALOG, RELU

SIGNS = Path(__file__).parent / "signs"


def read(path: Path, confined: bool) -> CompiledCode:
    if confined and available().missing_feature:
        pytest.skip(available().missing_feature)
    (variant,) = own_variants(path, CATALOG)
    case = Case(variant, {}, CATALOG.operator("relu").parse("(n=1000)"))
    with start_reading_code([case], "h200", (), confined) as reading:
        return reading.result()


def test_a_confined_process_reads_the_same() -> None:
    free, confined = (read(SIGNS / "sleeps.cu", confined) for confined in (False, True))
    assert free == confined
    assert free.arch == "sm_90" and [sign.rule.name for sign in free.signs] == ["sleep"]


def test_a_confined_compiler_reads_no_file_of_the_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#error the-secret\n")
    path = tmp_path / "kernels" / "mine.cu"
    path.parent.mkdir()
    path.write_text(RELU.replace("extern", f'#include "{secret}"\nextern'))
    assert any("the-secret" in one.message for one in read(path, confined=False).faults)
    confined = read(path, confined=True)
    assert confined.missing and "the-secret" not in str(confined)


def test_a_kernel_that_no_gpu_takes_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(RELU.replace("const int i", 'asm volatile("no_such_instruction;");\n    const int i'))
    (fault,) = read(path, confined=True).faults
    assert fault.case.startswith("relu/mine") and fault.message
