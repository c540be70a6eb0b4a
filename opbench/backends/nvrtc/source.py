"""What can be told from a kernel's source alone of whether NVRTC takes it, where there is no NVRTC to ask."""

from __future__ import annotations

import re

from opbench.catalog.launch import BuildRequest

_CPP = """
algorithm array atomic bitset cassert cfloat chrono climits cmath complex cstddef cstdint cstdio cstdlib cstring ctime
deque exception fstream functional initializer_list iomanip iostream iterator limits list map memory mutex numeric
optional queue random set sstream stack stdexcept string thread tuple type_traits unordered_map unordered_set utility
variant vector
"""
HOST_HEADERS = frozenset((*_CPP.split(), *(f"{name}.h" for name in ("assert", "math", "stdio", "stdlib", "string"))))
"""Headers of the host's libraries, none of which NVRTC has."""

_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_INCLUDE = re.compile(r"\s*#\s*include\s*<([^>]+)>")
_CONDITION = re.compile(r"\s*#\s*(if|endif)")


def source_fault(request: BuildRequest) -> str:
    """Why NVRTC is sure to refuse a module, with file and line; "" where the text does not tell."""
    try:
        text = request.source.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return _host_header(request, text) or _mangled_kernel(request, text)


def _host_header(request: BuildRequest, text: str) -> str:
    depth = 0  # a header behind a condition may be the host's own
    for number, line in enumerate(text.splitlines(), start=1):
        if condition := _CONDITION.match(line):
            depth += 1 if condition[1] == "if" else -1
        found = _INCLUDE.match(line)
        if found and depth == 0 and found[1] in HOST_HEADERS:
            return f"{request.source}:{number}: <{found[1]}> is a header of the host, which NVRTC has not"
    return ""


def _mangled_kernel(request: BuildRequest, text: str) -> str:
    plain = _NOISE.sub(lambda noise: noise[0] if noise[0] == '"C"' else re.sub(r"[^\n]", " ", noise[0]), text)
    if re.search(r'extern\s*"C"\s*\{', plain):
        return ""
    for declared in re.finditer(r"\b__global__\b([^;{}]*)", plain):
        begin = max(plain.rfind(mark, 0, declared.start()) for mark in ";{}#") + 1
        kernel = next((name for name in request.kernels if re.search(rf"\b{re.escape(name)}\s*\(", declared[1])), None)
        if kernel and not re.search(r'extern\s*"C"', plain[begin : declared.start()]):
            line = plain.count("\n", 0, declared.start()) + 1
            return (
                f"{request.source}:{line}: kernel '{kernel}' is not extern \"C\", so that NVRTC gives it another "
                'name: write extern "C" __global__'
            )
    return ""
