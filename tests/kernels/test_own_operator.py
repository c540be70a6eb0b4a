"""An operator of a user's own, written from README's sentence: right at once, or told what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.common import Cli

OPERATOR = '''\
"""standardise: rows less their mean, over their deviation."""

from dataclasses import dataclass

from opbench import Operator


@dataclass(frozen=True, kw_only=True)
class Standardise(Operator):
    """out = (x - mean) / sqrt(variance + 1e-5) * gamma + beta."""

    rows: int
    cols: int

    inputs = {"x": "rows cols", "gamma": "cols", "beta": "cols"}
    outputs = {"out": "rows cols"}

    def flops(self):
        """Eight an element."""
        return 8 * self.rows * self.cols

    def reference(self, x, gamma, beta):
        """In float64."""
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / (x.var(axis=1, keepdims=True) + 1e-5) ** 0.5 * gamma + beta

    @classmethod
    def examples(cls):
        """Odd ones."""
        return [cls(rows=rows, cols=cols) for rows, cols in ((1, 1), (5, 3), (67, 31), (3, 1021))]
'''
KERNEL = """\
// /// opbench
// title = "one thread a row"
// launch = [{ kernel = "standardise", grid = ["cdiv(rows, 32)"], block = ["32"] }]
// ///
//
// The plainest form.
extern "C" __global__ void standardise(
    const float* x, const float* gamma, const float* beta, float* out, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float mean = 0, square = 0;
    for (int i = 0; i < cols; ++i) mean += x[row * cols + i];
    mean /= cols;
    for (int i = 0; i < cols; ++i) square += (x[row * cols + i] - mean) * (x[row * cols + i] - mean);
    const float scale = 1.0f / sqrtf(square / cols + 1e-5f);
    for (int i = 0; i < cols; ++i) out[row * cols + i] = (x[row * cols + i] - mean) * scale * gamma[i] + beta[i];
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder laid out as variants/."""
    own = tmp_path / "mine" / "standardise"
    own.mkdir(parents=True)
    (own / "operator.py").write_text(OPERATOR)
    (own / "by_rows.cu").write_text(KERNEL)
    return own


def test_a_right_kernel_is_right_with_no_word_on_tolerances(cli: Cli, folder: Path) -> None:
    done = cli("check", "standardise", "--variants", folder.parent)
    assert done.returncode == 0 and "7 right" in done.stdout, done.stdout + done.stderr


def test_a_mean_left_out_is_wrong(cli: Cli, folder: Path) -> None:
    (folder / "by_rows.cu").write_text(KERNEL.replace("mean /= cols;", "mean = 0;"))
    assert cli("check", "standardise", "--variants", folder.parent).returncode == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"x": "rows cols"',
            '"x": "rows col"',
            "standardise: 'x' = 'rows col': unknown axis 'col'; did you mean 'cols'?",
        ),
        ("* gamma + beta", "* gamma + beta[1:]", "reference() fails with ValueError: operands could not be broadcast"),
        (
            "return centred /",
            "return (centred * gamma + beta)[:, :2]; 0 /",
            "reference() returns shape (67, 2) for 'out', but outputs declares (67, 31), 'rows cols'",
        ),
        ("return centred /", "return 0; centred /", "reference() returns no array for 'out', but outputs"),
        ("return [cls", "return [] and [cls", "standardise: examples() of the operator returns no problem"),
        (
            "return centred /",
            "return self.scale /",
            "fails with AttributeError: 'Standardise' object has no attribute 'scale'",
        ),
    ],
)
def test_a_mistake_in_an_operator_is_one_line(cli: Cli, folder: Path, old: str, new: str, message: str) -> None:
    text = OPERATOR.replace(old, new)
    (folder / "operator.py").write_text(text)
    done = cli("check", "standardise", "--variants", folder.parent)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert message in done.stderr
