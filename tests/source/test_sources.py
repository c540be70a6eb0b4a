"""What a kernel is made of: its file and its headers decide the compiled code, the checksum and the peak."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.emulator.backend import CpuBackend
from opbench.errors import CompileError, UsageError
from opbench.gpu.compile import nvrtc
from opbench.kernels import folders
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.header import read_variants
from opbench.kernels.variant import Variant
from opbench.running import targets
from opbench.running.protocol import pack, unpack
from opbench.source.sources import (
    MAX_BYTES,
    MAX_INCLUDE_DEPTH,
    Source,
    code_checksum,
    include_closure,
    tensor_core_operand_types,
)
from support.checks.errors import refuses
from support.common import CATALOG, RELU, kernel_variants
from support.needs import needs_nvrtc

CUDA = kernel_variants()
WITH_HEADER = RELU.replace("extern", '#include "limit.cuh"\nextern').replace("0.0f;", "LIMIT;")


def lay(folder: Path, **files: str) -> Path:
    """Files by stem: `kernel` is kernel.cu, all others are headers; returns the kernel's path."""
    for name, text in files.items():
        (folder / f"{name}.{'cu' if name == 'kernel' else 'cuh'}").write_text(text)
    return folder / "kernel.cu"


def names(path: Path, *folders: Path) -> list[str]:
    """Names of the files of a closure."""
    return [source.path.name for source in include_closure(path, folders)]


def relu(path: Path) -> Case:
    """The kernel of a test on a small problem."""
    (variant,) = targets.own_variants(path, CATALOG)
    return Case(variant, {}, CATALOG.operator("relu").from_axes({"n": 1000}))


# The closure ------------------------------------------------------------------------------------------------------


def test_each_header_once_in_the_order_of_inclusion(tmp_path: Path) -> None:
    kernel = lay(
        tmp_path,
        kernel='#include "b.cuh"\n#  include  "a.cuh" // why\n#include/**/"b.cuh"\n#include <cuda_fp16.h>\n',
        a='#pragma once\n#include "c.cuh"\n',
        b='#pragma once\n#include "a.cuh"\n#include "kernel.cu"\n',
        c="",
    )
    assert names(kernel) == ["kernel.cu", "b.cuh", "a.cuh", "c.cuh"]


@pytest.mark.parametrize(
    "text",
    [
        '// #include "a.cuh"\n',
        '/*\n#include "a.cuh"\n*/\n',
        '// a comment that goes on \\\n#include "a.cuh"\n',
        'const char* s = "\\\n#include \\"a.cuh\\"\\\n";\n',
        'const char* s = R"(\n#include "a.cuh"\n)";\n',
        'const char* s = R"x(\n)"\n#include \'a.cuh\'\n#include "a.cuh"\n)x";\n',
    ],
)
def test_comments_and_strings_decide_nothing(tmp_path: Path, text: str) -> None:
    assert names(lay(tmp_path, kernel=text, a="")) == ["kernel.cu"]


@pytest.mark.parametrize("text", ["int n = 1'000; // it's\n", "char c = '\"';\n", 'const char* s = "/*";\n', "\\\n"])
def test_what_only_looks_like_a_comment_or_a_string_hides_no_header(tmp_path: Path, text: str) -> None:
    assert names(lay(tmp_path, kernel=f'{text}#include "a.cuh"\n', a="")) == ["kernel.cu", "a.cuh"]


def test_folders_are_searched_in_order_and_the_files_own_only_for_quotes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / "a.cuh").write_text("")
    (second / "lib" / "b.cuh").write_text('#include "c.cuh"\n')
    (second / "lib" / "c.cuh").write_text("")
    kernel = lay(tmp_path, kernel="#include <lib/a.cuh>\n#include <lib/b.cuh>\n#include <near.cuh>\n", near="")
    found = [source.path for source in include_closure(kernel, (first, second))]
    assert found == [kernel, first / "lib/a.cuh", second / "lib/b.cuh", second / "lib/c.cuh"]


def test_a_header_that_a_macro_names_is_refused(tmp_path: Path) -> None:
    kernel = lay(tmp_path, kernel='#define A "a.cuh"\n#include A\n', a="")
    with refuses("macro-include", "A", at=("kernel.cu", 2)):
        include_closure(kernel)


def test_the_text_checksum_of_a_file_without_headers_is_its_own() -> None:
    for variant in CUDA:
        own = hashlib.sha256(variant.path.read_bytes()).hexdigest()
        assert (variant.text_sha256 == own) == (len(variant.sources) == 1), variant.id


def of_text(folder: Path, kernel: str, limit: str = "#define LIMIT 0.0f\n") -> Variant:
    """Return the variant of a kernel's text, which may include a header of another text."""
    return relu(lay(folder, kernel=kernel, limit=limit)).variant


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('title = "a kernel of a test"', 'title = "another title"'),
        ("// launch", '// mechanism = [\n//     "tma", "fused",\n// ]\n// launch'),
        ("// launch", '// builds_on = "scalar"\n// tile = { m = 64 }\n// launch'),
        ("// launch", "// tune = { BLOCK = [128, 256] }\n// where = ['BLOCK > 128']\n// launch"),
        ("// Why.", "// Another reason,\n// in two lines."),
        ("    if", "\n    // a comment \\\n    that goes on\n  if"),
        ("int i = ", "int /* several\nlines */  i\t= /**/ "),
        ("    if", "    \r\n\n    if"),
        ("n) {", 'n) {  // a quote " in a comment'),
    ],
)
def test_an_edited_description_changes_the_text_and_not_what_runs(tmp_path: Path, before: str, after: str) -> None:
    old = of_text(tmp_path, WITH_HEADER)
    assert before in WITH_HEADER
    new = of_text(tmp_path, WITH_HEADER.replace(before, after, 1))
    assert (new.source_sha256, new.text_sha256 != old.text_sha256) == (old.source_sha256, True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT;", "LIMIT + 1;"),
        ("int i", "inti"),
        ('"cdiv(n, 256)"', '"cdiv(n, 255)"'),
        ("// launch", "// define = { LEAST = '2' }\n// launch"),
        ("// launch", "// requires = ['n > 2']\n// launch"),
        ("extern", '#include "cuda_fp16.h"\nextern'),
        ("    if", '    asm("  // a");\n    if'),
    ],
)
def test_edited_code_or_launch_changes_what_runs(tmp_path: Path, before: str, after: str) -> None:
    assert before in WITH_HEADER
    edited = of_text(tmp_path, WITH_HEADER.replace(before, after, 1)).source_sha256
    assert of_text(tmp_path, WITH_HEADER).source_sha256 != edited


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('const char* a = "x // y";', 'const char* a = "x // z";'),
        ('const char* a = "x  y";', 'const char* a = "x y";'),
        ('const char* a = R"(x\n\n// y)";', 'const char* a = R"(x\n// y)";'),
        ("const char a = '\"'; // b", "const char a = '\"'; int b;"),
        ("#define A 1 \\\n\nint b;", "#define A 1 \\\nint b;"),
        ("#define A 1\nint b;", "#define A 1 int b;"),
        ("#define A /* x\ny */ 1", "#define A\n1"),
    ],
)
def test_strings_and_line_ends_of_directives_are_code(tmp_path: Path, one: str, other: str) -> None:
    checksums = {of_text(tmp_path, WITH_HEADER, limit).source_sha256 for limit in (f"{one}\n", f"{other}\n")}
    assert len(checksums) == 2


WORDS = ("int", "a", "+", "+=", "1'000", '"a // b"', "'\"'", 'R"x(/*\n  )x"', "/", "#define A", "{", "0x1.8p3f")
BLANKS = (" ", "\t ", " /* b */ ", ' /* " \n */', " /**//* // */")
LINE_ENDS = ("\n", "\n\n  ", " // c\n", "  \r\n", " // ' \\\n d\n", " /* e */\n")


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1), min_size=1), st.data())
def test_only_words_and_lines_decide(lines: list[list[str]], data: st.DataObject) -> None:
    def laid_out() -> str:
        return "".join(
            data.draw(st.sampled_from(BLANKS)).join(words) + data.draw(st.sampled_from(LINE_ENDS)) for words in lines
        )

    def of(text: str) -> str:
        return code_checksum([Source(Path("a.cu"), text.encode(), 0)], "")

    one = laid_out()
    assert of(one) == of(laid_out())
    at = data.draw(st.integers(0, len(lines)))
    assert of(one) != of("".join(" ".join(words) + "\n" for words in [*lines[:at], ["b"], *lines[at:]]))


def test_comments_of_a_python_variant_do_not_run(tmp_path: Path) -> None:
    text = (CUDA[0].path.parent.parent / "matmul" / "cublas.py").read_text()
    kernel = tmp_path / "cublas.py"

    def of(text: str) -> str:
        kernel.write_text(text)
        return read_variants(kernel, "matmul")[0].source_sha256

    first, code = of(text), "    def run() -> None:\n"
    assert code in text and "title     = " in text
    for before, after in (
        ("title     = ", "title = "),
        ("title     = ", 'builds_on = "naive"\ntitle = '),
        (code, f"    # a comment\n\n{code}"),
        (code, f"{code[:-1]}  # a comment\n        # another\n"),
    ):
        assert of(text.replace(before, after, 1)) == first
    strings = {of(f'{text}\nA = """{line}"""\n') for line in ("a # b", "a # c", "a\nb", "a\n\nb")}
    assert len({first, of(text.replace(code, f"    pass\n{code}")), *strings}) == 6
    kernel.write_text(f"{text}\ndef (")
    assert read_variants(kernel, "matmul")[0].source_sha256 != first


# What it decides --------------------------------------------------------------------------------------------------


def test_an_edited_header_is_another_source(tmp_path: Path) -> None:
    kernel = lay(tmp_path, kernel=WITH_HEADER, limit="#define LIMIT 0.0f\n")
    before = relu(kernel).variant.source_sha256
    lay(tmp_path, limit="#define LIMIT 1.0f\n")
    assert relu(kernel).variant.source_sha256 != before


@needs_nvrtc
def test_an_edited_header_is_other_machine_code(tmp_path: Path) -> None:
    kernel = lay(tmp_path, kernel=WITH_HEADER, limit="#define LIMIT 0.0f\n")
    before = nvrtc.compile_cubin(relu(kernel).request(), "sm_90")
    lay(tmp_path, limit="#define LIMIT 1.0f\n")
    after = nvrtc.compile_cubin(relu(kernel).request(), "sm_90")
    assert before.cubin != after.cubin and before.cubin.read_bytes() != after.cubin.read_bytes()


def test_the_cpu_runs_what_the_header_says_now(tmp_path: Path) -> None:
    kernel, cpu = lay(tmp_path, kernel=WITH_HEADER, limit="#define LIMIT 0.0f\n"), CpuBackend(tmp_path / "cache")
    seen = []
    for limit in ("0.0f", "2.0f"):
        lay(tmp_path, limit=f"#define LIMIT {limit}\n")
        case = relu(kernel)
        buffers = {name: cpu.allocate(name, (1000,), "f32") for name in ("x", "out")}
        buffers["x"].write(np.full(1000, -1.0, np.float32))
        cpu.load(case.request()).bind(case.launches(8), buffers)()
        seen.append(buffers["out"].read()[0])
    assert seen == [0.0, 2.0]


@needs_nvrtc
def test_both_compilers_search_the_same_folders(tmp_path: Path) -> None:
    """A header in a folder that nobody names is in none of them."""
    kernel = lay(tmp_path, kernel=WITH_HEADER)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "limit.cuh").write_text("#define LIMIT 0.0f\n")
    for compile_ in (CpuBackend(tmp_path / "cache").compile, lambda r: nvrtc.compile_cubin(r, "sm_90")):
        with pytest.raises(CompileError, match=r"limit\.cuh"):
            compile_(relu(kernel).request())
        compile_(replace(relu(kernel).request(), include=(tmp_path / "elsewhere",)))


def test_a_folder_of_ones_own_brings_headers_which_come_first(tmp_path: Path) -> None:
    (tmp_path / "relu").mkdir()
    (tmp_path / "relu" / "mine.cu").write_text(WITH_HEADER.replace('"limit.cuh"', "<opbench/tile.cuh>"))
    (tmp_path / "include" / "opbench").mkdir(parents=True)
    (header,) = CATALOG.include
    without = Catalog([tmp_path]).variant("relu", "mine")
    assert [s.path for s in without.sources[1:]] == [header / "opbench" / "tile.cuh"]
    own = tmp_path / "include" / "opbench" / "tile.cuh"
    own.write_text("#define LIMIT 0.0f\n")
    variant = Catalog([tmp_path]).variant("relu", "mine")
    assert [s.path for s in variant.sources[1:]] == [own] and variant.include == (tmp_path / "include", header)
    CpuBackend(tmp_path / "cache").compile(relu_of(variant).request())


def relu_of(variant: Variant) -> Case:
    """A variant on a small problem."""
    return Case(variant, {}, CATALOG.operator("relu").from_axes({"n": 7}))


def test_a_file_edited_since_the_run_began_is_not_run_under_its_old_name(tmp_path: Path) -> None:
    kernel = lay(tmp_path, kernel=WITH_HEADER, limit="#define LIMIT 0.0f\n")
    packed = pack(relu(kernel))
    assert unpack(CATALOG, packed) == relu(kernel)
    lay(tmp_path, limit="#define LIMIT 1.0f\n")
    with refuses("edited"):
        unpack(CATALOG, packed)


def test_a_header_is_read_once_until_a_file_of_it_is_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, catalog = lay(tmp_path, kernel=WITH_HEADER, limit="#define LIMIT 0.0f\n"), CATALOG
    packed, reads = pack(relu(kernel)), []
    read = folders.read_variants
    monkeypatch.setattr(folders, "read_variants", lambda *a: (reads.append(a[0]), read(*a))[1])
    cases = [unpack(catalog, packed) for _ in range(3)]
    assert reads == [kernel] and cases[0].variant is cases[2].variant
    lay(tmp_path, limit="#define LIMIT 10.0f\n")
    with refuses("edited"):
        unpack(catalog, packed)
    assert reads == [kernel] * 2


# What tensor cores multiply ---------------------------------------------------------------------------------------

MMA = '    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.{0}.{0}.f32 "\n        "{{%0}};" : : );\n'


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        (MMA.format("tf32"), {"tf32"}),
        (MMA.format("bf16") + MMA.format("tf32"), {"bf16", "tf32"}),
        (f"/* {MMA.format('tf32')} */ // mma.sync.tf32", set()),
        ('asm("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0}, %1;");', {"bf16"}),
        ('asm("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {%0};");', {"tf32"}),
        ('asm("mma.sync.aligned." TYPES ";");', {"an unnamed type"}),
        ("wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;", {"f16"}),
        ("nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 8, nvcuda::wmma::precision::tf32> b;", {"tf32"}),
        ("wmma::fragment<wmma::accumulator, 16, 16, 16, float> c; // mma", set()),
        ("float mma(float a) { return a; }", set()),
    ],
)
def test_matrix_instructions_are_seen_with_their_types(tmp_path: Path, text: str, classes: set[str]) -> None:
    kernel = lay(tmp_path, kernel='#include "a.cuh"\n', a=f"\n{text}\n")
    found = tensor_core_operand_types(include_closure(kernel))
    assert found.keys() == classes
    assert all(place == f"{tmp_path}/a.cuh:2" or classes == {"bf16", "tf32"} for place in found.values())


@pytest.mark.parametrize(
    ("header", "instruction", "line", "message"),
    [
        ('precision = "f32"', "tf32", 3, r'precision = "f32", but .*a\.cuh:2 multiplies in tf32 .* product = "tf32x3"'),
        ('title = "t"', "bf16", 2, 'precision = "f32", but'),
        ('precision = "tf32"', "bf16", 3, "multiplies in bf16"),
        ('product = "tf32x3"', "bf16", 3, "multiplies in tf32 on tensor cores, which neither .* they multiply in bf16"),
        ('product = "tf32"', "", 3, "which neither the file nor its headers do"),
    ],
)
def test_a_roof_that_would_be_wrong_is_refused(
    tmp_path: Path, header: str, instruction: str, line: int, message: str
) -> None:
    text = RELU.replace('title = "a kernel of a test"', header).replace("extern", '#include "a.cuh"\nextern')
    kernel = lay(tmp_path, kernel=text, a=f"\n{MMA.format(instruction) if instruction else ''}")
    with pytest.raises(UsageError, match=rf"kernel\.cu:{line}: .*{message}"):
        read_variants(kernel)


@pytest.mark.parametrize(
    ("header", "instruction", "expected"),
    [
        ('precision = "tf32"', "tf32", ("tf32", "tf32", "")),
        ('product = "tf32"', "tf32", ("tf32", "tf32", "tf32")),
        ('product = "tf32x3"', "tf32", ("f32", "tf32/3", "tf32x3")),
        ('product = "bf16"', "bf16", ("bf16", "bf16", "bf16")),
        ('product = "tf32x3"\n// precision = "tf32"', "tf32", ("tf32", "tf32/3", "tf32x3")),
        ('title = "t"', "", ("f32", "f32", "")),
    ],
)
def test_precision_roof_and_macro_follow_from_the_product(
    tmp_path: Path, header: str, instruction: str, expected: tuple[str, str, str]
) -> None:
    text = RELU.replace('title = "a kernel of a test"', header)
    (variant,) = read_variants(lay(tmp_path, kernel=text + (MMA.format(instruction) if instruction else "")))
    case = relu_of(variant)
    assert (case.precision, case.unit, dict(case.request().macros).get("PRODUCT", "")) == expected


def test_every_roof_of_the_catalog_is_that_of_what_is_multiplied() -> None:
    """By the names of the variants and by a plain search, neither of which the reader uses."""
    seen = 0
    of_bytes = {"scaled_matmul": "fp8", "int8_matmul": "s8"}
    for variant in CUDA:
        text = "".join(source.text for source in variant.sources)
        if variant.operator in of_bytes:
            assert variant.unit == (of_bytes[variant.operator] if "mma.sync" in text or "wgmma" in text else "")
            continue
        if variant.operator == "mma" and (kind := variant.name.rpartition("_")[2]) in of_bytes.values():
            assert variant.unit == kind, variant.id
            continue
        if "wgmma.mma_async" in text:  # one function for all types
            kinds = {"tf32": "tf32", "planes": "f16/3", "floats": "f16/3", "halves": "f16", "f16": "f16"}
            kind = next((kinds[name] for name in kinds if name in variant.name.replace("bf16", "")), "bf16")
            assert variant.unit == kind, variant.id
            continue
        types = set(re.findall(r"mma\S*\.f32\.(tf32|bf16)\.", text))
        if not types:
            assert variant.unit == "", variant.id
            continue
        seen += 1
        wanted = "tf32/3" if "3xtf32" in variant.name or variant.name.endswith("mma_f32") else ""
        wanted = "tf32/2" if variant.id == "conv2d_wgrad/nhwc_few_channels_mma_f32" else wanted
        wanted = wanted or ("tf32/2" if "corrected" in variant.name else variant.precision)
        assert (variant.unit or variant.precision) == wanted, variant.id
        assert variant.product or types == {variant.precision}, variant.id
    assert seen > 25


def test_includes_that_nest_too_deep_and_huge_files_are_refused(tmp_path: Path) -> None:
    for number in range(MAX_INCLUDE_DEPTH + 1):
        (tmp_path / f"h{number}.cuh").write_text(f'#include "h{number + 1}.cuh"\n')
    (tmp_path / f"h{MAX_INCLUDE_DEPTH + 1}.cuh").write_text("")
    assert len(include_closure(tmp_path / "h2.cuh")) == MAX_INCLUDE_DEPTH
    with pytest.raises(UsageError) as refused:
        include_closure(tmp_path / "h1.cuh")
    assert refused.value.location is not None and refused.value.location.line == 1
    huge = tmp_path / "huge.cuh"
    with huge.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with refuses("file-too-large", "huge.cuh", allowed=MAX_BYTES):
        include_closure(huge)
