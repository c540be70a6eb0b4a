"""Build files for the shipped sources: a Makefile, a CMakeLists.txt, and a README with instructions."""

from __future__ import annotations

from opbench.shipping.fixed_text import template


def nvcc_options(arch: str) -> str:
    """Return nvcc's options for an architecture such as "sm_90": machine code, and PTX if newer GPUs can use it."""
    digits = arch.removeprefix("sm_")
    ptx = "" if digits.endswith("a") else f" -gencode arch=compute_{digits},code=compute_{digits}"
    return f"-gencode arch=compute_{digits},code=sm_{digits}{ptx}"


def cmake_architecture(arch: str) -> str:
    """Return the value of CMAKE_CUDA_ARCHITECTURES for an architecture: "90" for "sm_90", "90a-real" for "sm_90a"."""
    digits = arch.removeprefix("sm_")
    return f"{digits}-real" if digits.endswith("a") else digits


def makefile(name: str, arch: str, target_kind: str, cubin: str) -> str:
    """Return the Makefile of a "library" or of a "network" (`target_kind`)."""
    values = {"name": name, "arch": arch, "code": nvcc_options(arch), "cubin": cubin}
    return template(f"makefile_{target_kind}", values) + "\n"


def cmakelists(name: str, arch: str, target_kind: str) -> str:
    """Return the CMakeLists.txt of a "library" or of a "network" (`target_kind`), for CMake 3.24 and newer."""
    return template(f"cmake_{target_kind}", {"name": name, "cmake": cmake_architecture(arch)}) + "\n"
