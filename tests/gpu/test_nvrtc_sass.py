"""Machine code read from active cubins: widths, classes, lines and a hash that only the code decides."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opbench.errors import EnvironmentFault
from opbench.gpu.compile import installed, nvrtc, sass
from opbench.gpu.compile.cubin import BadCubin, read_cubin
from opbench.gpu.compile.sass import Instruction, KernelCode
from opbench.kernels.launch import BuildRequest
from support.checks.errors import needs_extra
from support.common import CATALOG
from support.needs import NO_NVRTC


def missing() -> str:
    """Why nothing can be disassembled here, else empty."""
    try:
        sass.nvdisasm()
    except EnvironmentFault as error:
        return NO_NVRTC or str(error)
    return NO_NVRTC


needs_tools = pytest.mark.skipif(bool(missing()), reason=missing())

LISTING = """\
\t.target\tsm_90
//--------------------- .text.one                  --------------------------
\t.section\t.text.one,"ax",@progbits
        .type           one,@function
one:
.text.one:
\t//## File "/some/where/a.cu", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
\t//## File "/cuda/half.hpp", line 900 inlined at "/some/where/a.cu", line 5
\t//## File "/some/where/a.cu", line 5
        /*0010*/              @!P1 LDG.E.128.CONSTANT R8, desc[UR6][R4.64] ;
.L_x_7:
        /*0020*/              @!PT LDS RZ, [RZ] ;
        /*0030*/                   HFMA2.MMA R5, -RZ, RZ, 0, 0 ;
        /*0040*/               @P0 BRA `(.L_x_7) ;
        /*0050*/                   CALL.REL.NOINC `($one$helper) ;
        /*0060*/                   EXIT ;
        .type           $one$helper,@function
$one$helper:
        /*0070*/                   STG.E.U16 desc[UR6][R2.64], R8 ;
        /*0080*/                   RET.REL.NODEC R18 `(one) ;
.L_x_9:
        /*0090*/                   BRA `(.L_x_9);
        /*00a0*/                   NOP;
.L_x_10:
//--------------------- SYMBOLS --------------------------
        /*0000*/                   FFMA R1, R1, R1, R1 ;
"""


def test_a_listing_is_read() -> None:
    one = sass.parse(LISTING)["one"]
    assert [i.opcode for i in one.instructions][-1] == "RET.REL.NODEC", "padding is left out"
    assert one.lines() == {"5": {"LDG.128": 1}}, "code of a compiler's header counts for the line that uses it"
    assert one.instructions[1] == Instruction("@!P1", "LDG.E.128.CONSTANT", "R8, desc[UR6][R4.64]", 5)
    assert one.mix.accesses == {"LDG.128": 1, "STG.16": 1}
    assert one.mix.classes == {"branch": 4, "LDG": 1, "STG": 1, "constant load": 1, "move": 1}
    assert one.mix.total == 8
    assert one.summary().lines == {"5": {"LDG.128": 1}}


def test_a_line_of_a_header_is_not_that_line_of_the_kernel() -> None:
    """Both have a line 5; the innermost place of the user's own counts."""
    chain = """\t//## File "/own/tile.cuh", line 5 inlined at "/some/where/a.cu", line 5\n"""
    text = LISTING.replace(".L_x_7:\n", f'{chain}\t//## File "/some/where/a.cu", line 5\n.L_x_7:\n')
    text = text.replace("@!PT LDS RZ, [RZ]", "LDS.64 R2, [R0]")
    assert sass.parse(text)["one"].lines() == {"5": {"LDG.128": 1, "LDS.64": 1}}, "which files are own is not told"
    one = sass.parse(text, sources=[Path("/some/where/a.cu"), Path("/own/tile.cuh")])["one"]
    assert one.lines() == {"5": {"LDG.128": 1}, "tile.cuh:5": {"LDS.64": 1}}
    assert one.instructions[2].location == "tile.cuh:5"


def sunk(middle: str) -> dict[str, int]:
    """Of a load of line 3 with something between it and a branch of line 5."""
    text = f"""\
//--------------------- .text.one                  --------------------------
\t//## File "a.cu", line 5
        /*0000*/               @P0 BRA `(.L_x_7) ;
{middle}
\t//## File "a.cu", line 3
        /*0020*/                   LDS.128 R4, [R0] ;
\t//## File "a.cu", line 5
        /*0030*/                   STG.E.128 desc[UR6][R8.64], R4 ;
.L_x_7:
        /*0040*/                   EXIT ;
"""
    return dict(sass.parse(text)["one"].sunk)


def test_loads_under_the_condition_of_a_later_line() -> None:
    assert sunk("") == {"3": 5}
    assert sunk("        /*0010*/                   BAR.SYNC 0x0 ;") == {}
    assert sunk("        /*0010*/                   BRA `(.L_x_7) ;") == {}
    assert sunk(".L_x_3:") == {}, "another path leads here"
    assert sunk('\t//## File "a.cu", line 2\n        /*0010*/               @P1 BRA `(.L_x_7) ;') == {}


def test_labels_names_and_lines_do_not_change_the_hash_but_constants_do() -> None:
    first = sass.parse(LISTING)["one"].sha256
    renamed = (
        LISTING.replace("one", "other").replace(".L_x_7", ".L_x_1").replace("a.cu", "b.cu").replace("line 5", "line 6")
    )
    assert sass.parse(renamed)["other"].sha256 == first
    assert sass.parse(LISTING.replace("U16", "U8"))["one"].sha256 != first
    assert sass.parse(LISTING.replace("`(.L_x_7)", "`(.L_x_9)"))["one"].sha256 != first, "another way through it"
    assert sass.parse(LISTING, {"one": b"\1"})["one"].sha256 != first


@pytest.mark.parametrize(
    ("opcode", "operands", "kind", "width"),
    [
        ("LDG.E.64", "R2, [R4.64]", "LDG", 64),
        ("LDG.E.S8.STRONG.GPU", "", "LDG", 8),
        ("LDGSTS.E.BYPASS.LTC128B.128", "", "LDGSTS", 128),
        ("LDSM.16.M88.4", "", "LDSM", 128),
        ("LDSM.16.MT88", "", "LDSM", 32),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", "", "RED", 32),
        ("ATOMS.POPC.INC.32", "", "ATOM", 32),
        ("STL.64", "", "STL", 64),
        ("UIADD3", "", "IADD", 0),
        ("USHF.L.U32", "", "other integer", 0),
        ("IMAD.MOV.U32", "", "move", 0),
        ("IMAD.WIDE", "", "IMAD", 0),
        ("HFMA2", "R2, R3, R4, R5", "fp16", 0),
        ("HGMMA.64x128x16.F32.BF16", "", "tensor", 0),
        ("MUFU.RCP", "", "MUFU", 0),
        ("F2FP.F16.F32.PACK_AB", "", "float convert", 0),
        ("F2F.F64.F32", "", "float convert", 0),
        ("F2I.FTZ.U32.TRUNC.NTZ", "", "convert", 0),
        ("ULDC.64", "", "constant load", 0),
        ("BAR.SYNC.DEFER_BLOCKING", "0x0", "BAR", 0),
        ("FROBNICATE", "", "other", 0),
    ],
)
def test_an_instruction_is_classed(opcode: str, operands: str, kind: str, width: int) -> None:
    found = Instruction("", opcode, operands, 0)
    assert (found.kind, found.bits_per_thread) == (kind, width)


def test_no_instruction_is_in_two_classes() -> None:
    names = [name for family in sass.OPCODES_BY_CLASS.values() for name in family.split()] + list(sass.MEMORY)
    assert len(names) == len(set(names))


# Real cubins ------------------------------------------------------------------------------------------------------


def code_of(request: BuildRequest, arch: str = "sm_90") -> KernelCode:
    """The machine code of a request's first kernel."""
    cubin = nvrtc.compile_cubin(request, arch).cubin.read_bytes()
    return sass.disassemble(cubin)[request.kernels[0]]


def shipped_code(operator: str, name: str, arch: str = "sm_90") -> KernelCode:
    """The machine code of a shipped variant's first config."""
    variant = CATALOG.variant(operator, name)
    macros = tuple(sorted((key, str(value)) for key, value in variant.configs[0].items()))
    return code_of(BuildRequest(variant.path, variant.kernels, macros), arch)


@needs_tools
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_widths_are_those_of_the_source(arch: str) -> None:
    scalar, vector = shipped_code("copy", "scalar", arch), shipped_code("copy", "vec4", arch)
    assert scalar.mix.accesses == {"LDG.32": 1, "STG.32": 1}
    assert vector.mix.accesses == {"LDG.128": 1, "LDG.32": 1, "STG.128": 1, "STG.32": 1}
    lines = CATALOG.variant("copy", "vec4").path.read_text().splitlines()
    for line, accesses in vector.lines().items():
        assert ("float4" in lines[int(line) - 1]) == ("LDG.128" in accesses) == ("STG.128" in accesses)


@needs_tools
def test_the_mix_shows_what_a_variant_does() -> None:
    chains = shipped_code("fma", "chains_8").mix
    assert chains.classes["FFMA"] > chains.total / 2
    tile = shipped_code("matmul", "shared_tile").mix
    assert (
        tile.classes["LDS"] > 0
        and tile.classes["STS"] == 2
        and tile.classes["BAR"] == 2
        and not {"LDL", "STL"} & tile.classes.keys()
    )
    assert shipped_code("sum", "shuffle").mix.classes["SHFL"] >= 5
    assert "other" not in tile.classes


SOURCE = 'extern "C" __global__ void scale(float* a) { a[threadIdx.x] = a[threadIdx.x] * 3.0f + 1.0f; }\n'


def compiled(path: Path, text: str, kernel: str = "scale") -> KernelCode:
    """The machine code of a source of these words."""
    path.write_text(text)
    return code_of(BuildRequest(path, (kernel,)))


@needs_tools
def test_only_the_code_decides_the_hash(tmp_path: Path) -> None:
    first = compiled(tmp_path / "first.cu", SOURCE)
    assert compiled(tmp_path / "another_name.cu", f"// a comment\n\n{SOURCE}").sha256 == first.sha256
    assert compiled(tmp_path / "c.cu", SOURCE.replace("scale", "R"), "R").sha256 == first.sha256
    assert compiled(tmp_path / "b.cu", SOURCE.replace("3.0f", "4.0f")).sha256 != first.sha256


@needs_tools
def test_constant_memory_belongs_to_the_hash(tmp_path: Path) -> None:
    text = '__constant__ float t[2] = {1, 2};\nextern "C" __global__ void scale(float* a, int i) { a[0] = t[i]; }\n'
    first = compiled(tmp_path / "first.cu", text)
    assert compiled(tmp_path / "b.cu", text.replace("1, 2", "1, 3")).sha256 != first.sha256


@needs_tools
def test_an_array_indexed_at_run_time_is_seen_as_local_memory(tmp_path: Path) -> None:
    text = """extern "C" __global__ void scale(float* a, int n) {
  float t[200];
  for (int i = 0; i < 200; ++i) t[(i * n) % 200] = a[i];
  a[0] = t[n];
}
"""
    code = compiled(tmp_path / "a.cu", text)
    assert code.mix.classes["LDL"] + code.mix.classes["STL"] > 0
    assert any(access.startswith("STL") for access in code.lines()["3"])


@needs_tools
def test_a_listing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBENCH_CACHE", str(tmp_path / "cache"))
    first = compiled(tmp_path / "a.cu", SOURCE)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("ran nvdisasm again")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert compiled(tmp_path / "a.cu", SOURCE) == first


@needs_tools
def test_bytes_that_are_no_cubin_are_refused() -> None:
    for data in (b"", b"not ELF", b"\x7fELF\x02\x01" + bytes(100)):
        with pytest.raises(BadCubin, match="opbench cannot read the cubin"):
            sass.disassemble(data)


@needs_tools
def test_an_elf_file_for_another_machine_and_a_damaged_cubin_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(SOURCE)
    cubin = nvrtc.compile_cubin(BuildRequest(tmp_path / "a.cu", ("scale",)), "sm_90").cubin.read_bytes()
    assert set(read_cubin(cubin).kernels) == {"scale"}
    for data in (cubin[:18] + b"\x3e\0" + cubin[20:], cubin[: len(cubin) // 2]):  # bytes 18 and 19: e_machine
        with pytest.raises(BadCubin):
            read_cubin(data)


def test_without_nvdisasm_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed, "wheel_roots", lambda: [tmp_path])
    monkeypatch.setattr(installed, "toolkits", lambda: [tmp_path])
    monkeypatch.setenv("PATH", str(tmp_path))
    sass.nvdisasm.cache_clear()
    try:
        with needs_extra("nvrtc"):
            sass.nvdisasm()
    finally:
        sass.nvdisasm.cache_clear()


def machine_code(path: Path, text: str, *macros: tuple[str, str]) -> str:
    """The hash that results carry, of a source of these words."""
    path.write_text(text)
    cubin = nvrtc.compile_cubin(BuildRequest(path, ("scale",), macros), "sm_90").cubin
    return read_cubin(cubin.read_bytes()).machine_code_sha256


@needs_tools
def test_the_hash_of_results_needs_no_tool_and_counts_what_occupancy_depends_on(tmp_path: Path) -> None:
    first = machine_code(tmp_path / "first.cu", SOURCE)
    assert machine_code(tmp_path / "another_name.cu", f"// a comment\n\n{SOURCE}") == first
    assert machine_code(tmp_path / "a.cu", SOURCE, ("UNUSED", "3")) == first
    assert machine_code(tmp_path / "b.cu", SOURCE.replace("3.0f", "4.0f")) != first
    bounded = SOURCE.replace("void scale", "void __launch_bounds__(1024, 2) scale")
    shared = SOURCE.replace("{ a", "{ __shared__ volatile float s[99]; s[0] = 1; a")
    more_shared = shared.replace("99", "9999")
    hashes = {machine_code(tmp_path / "c.cu", text) for text in (SOURCE, shared, more_shared)}
    assert len(hashes) == 3, "the last two differ in their shared memory only"
    assert machine_code(tmp_path / "d.cu", bounded), "launch bounds may or may not change the code"
    with pytest.raises(BadCubin):
        read_cubin(b"\x7fELF nothing")
