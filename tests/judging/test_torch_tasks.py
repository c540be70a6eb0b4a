"""Kernels judged by PyTorch tasks: right ones are accepted, and only a task that the user names is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.judging.document import VerdictDocument
from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from opbench.judging.verify import compare, judge_again
from opbench.running.options import CheckOptions
from opbench.running.untrusted import require_confinable
from opbench.source.inline_source import read_inline_source
from support.checks.errors import refuses
from support.torch_kernels import KERNELS, NaiveKernel

TASKS = Path(__file__).parent.parent / "tasks"
WRONG = {
    "elementwise_leaky_relu": ("0.01f", "0.011f", "wrong-result"),
    "elementwise_softplus": ("v > 20.0f ? v : ", "", "special-inputs"),
    "rows_softmax": ("expf(r[c] - top)", "expf(r[c])", "special-inputs"),
    "rows_row_sum": ("c < cols", "c < cols - 1", "wrong-result"),
    "linear": ("float total = b[i % outputs]", "float total = 0.0f", "wrong-result"),
    "conv": ("if (i >= batch * filters * oh * ow) return;", "", "out-of-bounds"),
}
"""For the names of kernels: a text, what replaces it, and the code of the refusal."""


def judged(kernel: NaiveKernel, text: str, folder: Path, task: bool = True) -> VerdictDocument:
    path = folder / f"{kernel.name}.cu"
    path.write_text(text)
    return judge([path], JudgeOptions(task=TASKS / kernel.task if task else None, backend="cpu", drawn=1))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_naive_kernel_is_right(kernel: NaiveKernel, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    document = judged(kernel, kernel.text(str(TASKS)), tmp_path)
    assert document.overall == "accepted", document.reason
    assert document.submission.operator_file.path.endswith(kernel.task.partition(":")[0])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    old, new, code = WRONG[name]
    text = kernel.text(str(TASKS))
    assert old in text
    document = judged(kernel, text.replace(old, new), tmp_path)
    assert (document.overall, document.code) == ("refused", code), document.reason
    assert "--task" in document.next_step.command


def test_a_header_without_an_operator_takes_that_of_the_task_and_verify_finds_no_difference(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kernel = KERNELS[0]
    text = "\n".join(line for line in kernel.text("").splitlines() if "operator" not in line)
    document = judged(kernel, text, tmp_path)
    assert document.overall == "accepted", document.reason
    assert compare(document, judge_again(document, document.submission.targets)).differences == ()


LAUNCHER = """#include <torch/extension.h>
__global__ void soft(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float top = x[row * cols], sum = 0;
    for (int i = 1; i < cols; ++i) top = fmaxf(top, x[row * cols + i]);
    for (int i = 0; i < cols; ++i) sum += expf(x[row * cols + i] - top);
    for (int i = 0; i < cols; ++i) out[row * cols + i] = expf(x[row * cols + i] - top) / sum;
}
torch::Tensor forward(torch::Tensor x) {
    const int rows = x.size(0), cols = x.size(1);
    auto out = torch::empty_like(x);
    soft<<<(rows + 127) / 128, 128>>>(x.data_ptr<float>(), out.data_ptr<float>(), rows, cols);
    return out;
}
"""


def test_a_load_inline_candidate_is_judged_by_its_launcher(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (candidate := tmp_path / "candidate.py").write_text(f"s = '''{LAUNCHER}'''\nload_inline('m', '', s)\n")
    (kernel := tmp_path / "candidate.cu").write_text(read_inline_source(candidate))
    document = judge([kernel], JudgeOptions(task=TASKS / "rows.py:softmax", backend="cpu", drawn=1))
    assert document.overall == "accepted", document.reason


COUNT_LAUNCHER = """#include <torch/extension.h>
__global__ void swish(const float* x, float* out, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) out[i] = x[i] / (1.0f + expf(-x[i]));
}
torch::Tensor forward(torch::Tensor x) {
    auto size = x.numel();
    auto out = torch::empty_like(x);
    swish<<<(size + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), size);
    return out;
}
"""


def test_the_only_size_of_a_kernel_is_the_number_of_elements(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (kernel := tmp_path / "swish.cu").write_text(COUNT_LAUNCHER)
    document = judge([kernel], JudgeOptions(task=TASKS / "elementwise.py:swish", backend="cpu", drawn=1))
    assert document.overall == "accepted", document.reason


def test_a_task_that_only_the_kernel_names_is_not_loaded(tmp_path: Path) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == "linear")
    (tmp_path / "linear.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with refuses("other-task", allowed="--task"):
        judged(kernel, kernel.text(str(tmp_path)), tmp_path, task=False)
    assert not (tmp_path / "ran").exists()


def test_a_confined_check_does_not_load_the_task_that_a_kernel_names(tmp_path: Path) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == "linear")
    (tmp_path / "linear.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (path := tmp_path / "linear.cu").write_text(kernel.text(str(tmp_path)))
    with refuses("python-file", "linear.py", allowed="--trust"):
        require_confinable([path], CheckOptions(untrusted=True), "cpu")
    assert not (tmp_path / "ran").exists()
