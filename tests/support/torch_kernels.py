"""Naive kernels for the PyTorch tasks of tests/tasks, as text."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = """// /// opbench
// operator = "torch:{task}"
// launch = [{{ kernel = "k", grid = ["cdiv({threads}, 64)"], block = ["64"]{args} }}]
// ///
"""


@dataclass(frozen=True)
class NaiveKernel:
    """A kernel with one thread for each result."""

    task: str
    """The task in tests/tasks, such as "rows.py:softmax"."""
    parameters: str
    """The kernel's parameters."""
    body: str
    """The statements of thread `i`."""
    threads: str = "out_size"
    args: tuple[str, ...] = ()
    """The header's `args`; empty for the operator's order."""

    @property
    def name(self) -> str:
        """Return the task's name in the form of an identifier."""
        return self.task.replace(".py", "").replace(":", "_")

    def text(self, folder: str) -> str:
        """Return the file's text, whose header names the task in a folder."""
        args = f", args = [{', '.join(map(repr, self.args))}]".replace("'", '"') if self.args else ""
        header = HEADER.format(task=f"{folder}/{self.task}", threads=self.threads, args=args)
        return (
            f'{header}extern "C" __global__ void k({self.parameters}) {{\n'
            f"    const int i = blockIdx.x * 64 + threadIdx.x;\n{self.body}\n}}\n"
        )


def elementwise(name: str, formula: str) -> NaiveKernel:
    """Return a kernel that computes `formula` of one number `v`."""
    body = f"    if (i < rows * cols) {{ const float v = x[i]; out[i] = {formula}; }}"
    return NaiveKernel(f"elementwise.py:{name}", "const float* x, float* out, int rows, int cols", body)


def by_row(name: str, statements: str, out: str = "float") -> NaiveKernel:
    """Return a kernel in which one thread computes a row `r` of `cols` numbers."""
    body = f"    if (i >= rows) return;\n    const float* r = x + i * cols;\n{statements}"
    return NaiveKernel(f"rows.py:{name}", f"const float* x, {out}* out, int rows, int cols", body, "rows")


def product(name: str, formula: str) -> NaiveKernel:
    """Return a kernel that computes `formula` of one element `total` of a product."""
    body = f"""    if (i >= m * n) return;
    float total = 0.0f;
    for (int j = 0; j < k_; ++j) total += a[i / n * k_ + j] * b[j * n + i % n];
    out[i] = {formula};"""
    return NaiveKernel(f"products.py:{name}", "const float* a, const float* b, float* out, int m, int n, int k_", body)


def loss(name: str, term: str) -> NaiveKernel:
    """Return a kernel that computes the mean of `term` over pairs `v` and `t`, rows one after another."""
    body = f"""    if (i != 0) return;
    float total = 0.0f;
    for (int row = 0; row < rows; ++row) {{
        float sum = 0.0f;
        for (int c = 0; c < cols; ++c) {{ const float v = x[row * cols + c], t = y[row * cols + c]; sum += {term}; }}
        total += sum;
    }}
    out[0] = total / (rows * cols);"""
    return NaiveKernel(f"pairs.py:{name}", "const float* x, const float* y, float* out, int rows, int cols", body, "64")


LARGEST = "    float top = r[0];\n    for (int c = 1; c < cols; ++c) top = fmaxf(top, r[c]);\n"
SUM = "    float sum = 0.0f;\n    for (int c = 0; c < cols; ++c) sum += {term};\n"

KERNELS = [
    elementwise("relu", "fmaxf(v, 0.0f)"),
    elementwise("sigmoid", "1.0f / (1.0f + expf(-v))"),
    elementwise("tanh", "tanhf(v)"),
    elementwise("swish", "v / (1.0f + expf(-v))"),
    elementwise("gelu", "v * normcdff(v)"),
    elementwise("leaky_relu", "v > 0.0f ? v : 0.01f * v"),
    elementwise("elu", "v > 0.0f ? v : expm1f(v)"),
    elementwise("hardtanh", "fminf(1.0f, fmaxf(-1.0f, v))"),
    elementwise("hardsigmoid", "fminf(6.0f, fmaxf(0.0f, v + 3.0f)) / 6.0f"),
    elementwise("softsign", "v / (1.0f + fabsf(v))"),
    elementwise("softplus", "v > 20.0f ? v : log1pf(expf(v))"),
    elementwise("square_plus", "v * v + 3.0f"),
    by_row("row_sum", SUM.format(term="r[c]") + "    out[i] = sum;"),
    by_row("row_mean", SUM.format(term="r[c]") + "    out[i] = sum / cols;"),
    by_row("row_max", LARGEST + "    out[i] = top;"),
    by_row("row_min", LARGEST.replace("fmaxf", "fminf") + "    out[i] = top;"),
    by_row(
        "row_argmax",
        "    int best = 0;\n    for (int c = 1; c < cols; ++c) if (r[c] > r[best]) best = c;\n    out[i] = best;",
        "int",
    ),
    by_row(
        "softmax",
        LARGEST
        + SUM.format(term="expf(r[c] - top)")
        + "    for (int c = 0; c < cols; ++c) out[i * cols + c] = expf(r[c] - top) / sum;",
    ),
    by_row(
        "log_softmax",
        LARGEST
        + SUM.format(term="expf(r[c] - top)")
        + "    for (int c = 0; c < cols; ++c) out[i * cols + c] = r[c] - top - logf(sum);",
    ),
    by_row(
        "rms_norm",
        SUM.format(term="r[c] * r[c]")
        + "    for (int c = 0; c < cols; ++c) out[i * cols + c] = r[c] / sqrtf(sum / cols + 1e-5f);",
    ),
    by_row(
        "l2_norm",
        SUM.format(term="r[c] * r[c]") + "    for (int c = 0; c < cols; ++c) out[i * cols + c] = r[c] / sqrtf(sum);",
    ),
    by_row("cumsum", "    float sum = 0.0f;\n    for (int c = 0; c < cols; ++c) out[i * cols + c] = sum += r[c];"),
    product("matmul", "total"),
    product("scaled", "0.5f * total"),
    product("product_relu", "fmaxf(total, 0.0f)"),
    loss("mse", "(v - t) * (v - t)"),
    loss("l1", "fabsf(v - t)"),
    loss("hinge", "fmaxf(0.0f, 1.0f - v * t)"),
    NaiveKernel(
        "linear.py",
        "const float* x, const float* w, const float* b, float* out, int batch, int features, int outputs",
        """    if (i >= batch * outputs) return;
    float total = b[i % outputs];
    for (int j = 0; j < features; ++j) total += x[i / outputs * features + j] * w[i % outputs * features + j];
    out[i] = total;""",
    ),
    NaiveKernel(
        "conv.py",
        "const float* x, const float* w, float* out, int batch, int channels, int filters, int h, int width",
        """    const int oh = h - 2, ow = width - 2;
    if (i >= batch * filters * oh * ow) return;
    const int col = i % ow, row = i / ow % oh, f = i / ow / oh % filters, n = i / ow / oh / filters;
    float total = 0.0f;
    for (int c = 0; c < channels; ++c)
        for (int r = 0; r < 3; ++r)
            for (int s = 0; s < 3; ++s)
                total += x[((n * channels + c) * h + row + r) * width + col + s]
                    * w[((f * channels + c) * 3 + r) * 3 + s];
    out[i] = total;""",
    ),
    NaiveKernel(
        "pool.py",
        "const float* x, float* out, int planes, int h, int w, int oh, int ow",
        """    if (i >= planes * oh * ow) return;
    const float* p = x + (i / ow / oh * h + i / ow % oh * 2) * w + i % ow * 2;
    out[i] = fmaxf(fmaxf(p[0], p[1]), fmaxf(p[w], p[w + 1]));""",
        args=("x", "out", "x_dim0 * x_dim1", "x_dim2", "x_dim3", "out_dim2", "out_dim3"),
    ),
    NaiveKernel(
        "labels.py",
        "const float* scores, const int* labels, float* out, int rows, int classes",
        """    if (i != 0) return;
    float total = 0.0f;
    for (int row = 0; row < rows; ++row) {
        const float* r = scores + row * classes;
        float top = r[0], sum = 0.0f;
        for (int c = 1; c < classes; ++c) top = fmaxf(top, r[c]);
        for (int c = 0; c < classes; ++c) sum += expf(r[c] - top);
        total += logf(sum) + top - r[labels[row]];
    }
    out[0] = total / rows;""",
        "64",
    ),
]
