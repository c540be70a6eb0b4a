"""Record `opbench check` of a kernel with a race as docs/check.svg: `make picture`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "check.svg"
KERNEL = ROOT / "examples" / "block_sum.cu"
COLUMNS = 100

# rich's own format fetches a font from elsewhere.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
  <style>
  .{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
    line-height: {line_height}px; font-variant-east-asian: full-width; }}
  .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
  {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
  </g>
</svg>
"""


def checked(file: Path) -> tuple[str, float]:
    """Return the output of `opbench check` on a terminal, colours included, and the seconds it took."""
    reader, writer = pty.openpty()
    began_s = time.monotonic()
    command = [sys.executable, "-m", "opbench", "check", file.name]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, cwd=file.parent, stdout=writer, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(writer)
    parts = []
    while True:
        try:
            part = os.read(reader, 1 << 16)
        except OSError:  # how Linux says that the other end of a terminal is closed
            break
        if not part:
            break
        parts.append(part)
    process.wait()
    return b"".join(parts).decode().replace("\r", ""), time.monotonic() - began_s


def kernel_text(file: Path = KERNEL) -> str:
    """Return the kernel of the file, without its `main`."""
    return re.split(r"^int main", file.read_text(), flags=re.MULTILINE)[0].rstrip()


def record(output: str, time_s: float) -> str:
    """Return the picture of a terminal with the kernel, the command and its output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Syntax(kernel_text(), "cuda", line_numbers=True, theme="ansi_dark", background_color="default"))
    where = f"# {os.cpu_count()} CPU cores, no GPU: {time_s:.1f} s"
    console.print(Text(f"\n$ opbench check {KERNEL.name}    {where}", style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    return console.export_svg(title="opbench", code_format=SVG, unique_id="opbench")


if __name__ == "__main__":
    PICTURE.write_text(record(*checked(KERNEL)))
    print(f"wrote {PICTURE.relative_to(ROOT)}")
