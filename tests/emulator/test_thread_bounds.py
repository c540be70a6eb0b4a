"""The thread limit of a kernel, as its source states it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.emulator.refusals import thread_bound
from opbench.kernels.launch import BuildRequest

KERNEL = 'extern "C" __global__ void __launch_bounds__({}) kernel(float* out) {{}}\n'


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (KERNEL.format("64"), 64),
        ("constexpr int THREADS = 32 * WARPS;\n" + KERNEL.format("THREADS, 2"), 128),
        ("#define THREADS 96\n" + KERNEL.format("2 * THREADS"), 192),
        (KERNEL.format("sizeof(float)"), None),
        ("__global__ void kernel(float* out) {}\n", None),
        (f"#if WIDE\n{KERNEL.format('64')}#else\n{KERNEL.format('256')}#endif\n", 256),
        (f"#if WIDE\n{KERNEL.format('64')}#else\n{KERNEL.format('sizeof(float)')}#endif\n", None),
        (f"#if WIDE\n#define THREADS 64\n#else\n#define THREADS 256\n#endif\n{KERNEL.format('THREADS')}", None),
    ],
)
def test_a_limit_is_known_or_not(tmp_path: Path, text: str, limit: int | None) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(text)
    assert thread_bound(BuildRequest(source, ("kernel",), (("WARPS", "4"),)), "kernel") == limit
