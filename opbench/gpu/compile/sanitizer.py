"""Find NVIDIA's compute-sanitizer: on PATH, in its wheel, or in a CUDA toolkit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from opbench.gpu.compile import nvrtc

WHEEL_PATH = "cu*/compute-sanitizer/compute-sanitizer"
"""The place below the folder `nvidia`. Wheels before CUDA 13.4 have the program elsewhere and lack its launcher."""


def compute_sanitizer() -> Path | None:
    """Return the path of compute-sanitizer on PATH, of the extra `sanitizer` or of a CUDA toolkit; None without one."""
    on_path = shutil.which("compute-sanitizer")
    path_programs = [Path(on_path)] if on_path else []
    wheel_programs = [path for root in nvrtc.wheel_roots() for path in sorted(root.glob(WHEEL_PATH), reverse=True)]
    toolkit_programs = [toolkit / "bin" / "compute-sanitizer" for toolkit in nvrtc.toolkits()]
    usable = (
        path
        for path in (*path_programs, *wheel_programs, *toolkit_programs)
        if path.is_file() and os.access(path, os.X_OK)
    )
    return next(usable, None)
