"""What the tables say of variants that are no cases of a problem."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from opbench import api
from opbench.report.run.sentences import skipped_variants_sentence
from opbench.report.terminal import print_table
from opbench.results.rows import rows

SUITE = """\
[[run]]
operator = "maxpool2d"
variants = ["window_constant", "nhwc*"]
configs = "default"
problems = [{ n = 1, c = 2, h = 5, w = 5 }]
"""


def test_one_line_of_a_problem_says_which_variants_serve_other_modes(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SUITE)
    run = api.run(tmp_path / "s.toml", backend="cpu", out=tmp_path / "out", gpu="h200")
    assert [r.status for r in run.results] == ["right"]
    words = "nhwc_flat_divmod, nhwc_window_constant and nhwc_vector (requires layout = nhwc)."
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("Skipped: ") == 1 and "(requires layout = nhwc)." in page
    text = io.StringIO()
    print_table(rows(run), Console(file=text, width=200), run.left_out)
    assert text.getvalue().count("Skipped") == 1 and f"  Skipped: {words}" in text.getvalue()


def test_many_variants_are_counted() -> None:
    assert skipped_variants_sentence({"needs k >= 8 (here k=3)": list("abcdef")}) == (
        "Skipped: `a`, `b`, `c` and 3 more (requires k >= 8)."
    )
    assert skipped_variants_sentence({}) == ""
