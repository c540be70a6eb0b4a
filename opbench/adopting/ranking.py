"""Rank the operators that a kernel may compute by the kernel's name, formula, tensors and sizes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from opbench.adopting.kernel_summary import KernelSummary
from opbench.adopting.matching import Match, match_problem, plain_parameter_name, tensor_axes
from opbench.kernels.operator import Operator
from opbench.source.tokens import words

OPERATOR_ALIASES = {
    "gemm": "matmul", "sgemm": "matmul", "hgemm": "matmul", "mm": "matmul", "matrixmul": "matmul", "mmul": "matmul",
    "matrixmultiply": "matmul", "matrixmultiplication": "matmul", "matmult": "matmul", "matrixmult": "matmul",
    "vecadd": "add", "vectoradd": "add", "addvectors": "add", "vectadd": "add", "matrixadd": "add", "matadd": "add",
    "sumarrays": "add", "vectoraddition": "add", "vecsum": "add", "vectorsum": "add", "reduce": "sum",
    "reduction": "sum", "maxpool": "maxpool2d", "avgpool": "avgpool2d", "batchnorm": "batchnorm2d", "conv": "conv2d",
    "convolution": "conv2d", "memcpy": "copy", "upsample": "upsample2d", "transposed": "transpose",
    "matrixtranspose": "transpose", "transposematrix": "transpose",
}  # fmt: skip
"""Operators by the names that kernels often have for them."""
EXCLUDING_WORDS = words(
    """
    leaky log loss prod product mean avg average min max argmax argmin lower upper triangular sparse csr coo ell
    spmv scan prefix depthwise masked causal backward bwd grad gradient gradients int8 quant quantized fp8 complex
    leakyrelu prelu relu6 gelu bias scale scaled square squared cube
    mul multiply sub subtract div divide norm histogram segmented batched strided warmup oned threed
    """
)
"""Words that mean another computation if they stand next to an operator in a kernel's name, as in log_softmax."""
EXCLUDING_WORDS_BY_OPERATOR: Mapping[str, frozenset[str]] = {
    "matmul": words("vector vec mv matvec"),
    "transpose": words("conv convolution"),
}
"""Words in a kernel's name that mean another computation than one operator, by the operator's name."""
FUSED_WORDS = frozenset(("add", "relu", "softmax"))
"""Operators that a kernel fuses with another one if its name has both."""
FORMULA_OPERATORS = frozenset(("add", "relu", "copy", "transpose", "sum", "matmul", "softmax"))
"""Operators that are excluded if the kernel's stores have the formula of another operator."""
ARITHMETIC_OPERATORS = FORMULA_OPERATORS - {"softmax"}
"""Operators that call no mathematical function, and take no number from the host other than a factor of 1."""
MATHEMATICS = re.compile(
    r"(__)?(sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|atan2|exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sqrt|rsqrt|cbrt"
    r"|erf|erfc|hypot|fmod|sincos|sinpi|cospi)f?"
)
"""Mathematical functions of CUDA."""
KERNEL_NAME_SCORE, WORD_IN_NAME_SCORE, FILE_NAME_SCORE, FORMULA_SCORE, TENSOR_NAME_SCORE, SIZES_SCORE = (
    5.0,
    4.0,
    2.0,
    4.0,
    0.5,
    1.0,
)
"""The score that each kind of evidence adds to a match."""
MIN_SCORE = 2.5
"""The lowest score at which an operator is chosen that the user did not request."""
MAX_SUGGESTIONS = 3
"""The greatest number of nearest operators in an error message."""


def rank_operators(summary: KernelSummary, file_stem: str, operators: Mapping[str, type[Operator]]) -> list[Match]:
    """Return one match for each operator, most likely first, and those with a contradiction last.

    `file_stem` is the file's name without its suffix.
    """
    result = []
    for operator in operators.values():
        matches = [match_problem(summary, problem) for problem in _tensor_signatures(operator)]
        best = min(matches, key=lambda m: (len(m.contradictions), len(m.modes)))
        _add_evidence(best, summary, file_stem, operators.keys())
        result.append(best)
    return sorted(result, key=lambda m: (bool(m.contradictions), -m.score, len(m.missing_axes)))


def nearest_operators(ranked: Sequence[Match], summary: KernelSummary) -> list[str]:
    """Return the names of the operators whose tensors and names are most similar to the kernel's, for a message."""

    def distance(candidate: Match) -> tuple[float, float]:
        read_count, written_count = len(summary.pointers) - len(summary.store_kinds), len(summary.store_kinds)
        tensor_difference = abs(len(candidate.problem.inputs) - read_count) + abs(
            len(candidate.problem.outputs) - written_count
        )
        return tensor_difference - candidate.score, tensor_difference

    return [candidate.operator for candidate in sorted(ranked, key=distance)[:MAX_SUGGESTIONS]]


def _tensor_signatures(operator: type[Operator]) -> list[Operator]:
    """Return one problem for each set of tensors and dtypes of an operator, the default one first."""
    defaults, signatures = operator.modes(), dict[tuple[object, ...], Operator]()
    examples = operator.all_examples(operator.choices.get("dtype", ()))
    problems = sorted(examples, key=lambda p: sum(p.axes[k] != d for k, d in defaults.items()))
    for problem in problems:
        key = (tuple(problem.inputs.items()), tuple(problem.outputs.items()), problem.storage)
        if sum(problem.axes[k] != d for k, d in defaults.items()) <= 2:
            signatures.setdefault(key, problem)
    return list(signatures.values()) or problems[:1]


def words_of(name: str) -> list[str]:
    """Return the lower-case words of a name: `vectorAdd_v2` → vector, add, v, 2; `conv1d` keeps its `1d`."""
    text = re.sub(r"(?<![0-9A-Za-z])?([123])([dD])(?![a-z])", r"_\1d_", name)
    return [part.lower() for part in re.findall(r"[123]d|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)]


def named_operator(name: str, operator_names: Collection[str]) -> tuple[str, frozenset[str]]:
    """Return the operator that a name contains, and the words that name it; "" and no words if there is none."""
    name_words = words_of(name)
    spans = [(i, j) for i in range(len(name_words)) for j in range(len(name_words), i, -1)]
    for i, j in sorted(spans, key=lambda span: -sum(map(len, name_words[span[0] : span[1]]))):
        for joined in ("".join(name_words[i:j]), "_".join(name_words[i:j])):
            operator = OPERATOR_ALIASES.get(joined, joined)
            if operator in operator_names:
                return operator, frozenset(name_words[i:j])
    return "", frozenset()


def _add_evidence(candidate: Match, summary: KernelSummary, file_stem: str, operator_names: Collection[str]) -> None:
    """Add the evidence for an operator and its score to a match; another name or formula is a contradiction."""
    problem, name = candidate.problem, candidate.operator

    def add(score: float, text: str) -> None:
        candidate.score += score
        candidate.evidence.append(text)

    named, used_words = named_operator(summary.name, operator_names)
    if named == name:
        add(
            KERNEL_NAME_SCORE if set(words_of(summary.name)) <= used_words | {"kernel"} else WORD_IN_NAME_SCORE,
            f"the kernel is named {summary.name}",
        )
        foreign = [w for w in words_of(summary.name) if w in EXCLUDING_WORDS and w not in used_words and w not in name]
        foreign += [w for w in words_of(summary.name) if w in EXCLUDING_WORDS_BY_OPERATOR.get(name, ())]
        foreign += [w for w in words_of(summary.name) if w in ("1d", "3d") and "2d" in name]
        foreign += [w for w in words_of(summary.name) if w not in used_words and w in FUSED_WORDS - {name}]
        if foreign:
            candidate.contradict(
                "name", foreign[0], f"the kernel's name says '{foreign[0]}', which is not part of {name}"
            )
    elif not named and (named_by_file := named_operator(file_stem, operator_names))[0] == name:
        add(FILE_NAME_SCORE, f"the file is named {file_stem}")
        others = (w for w in (*words_of(summary.name), *words_of(file_stem)) if w not in named_by_file[1])
        if foreign := [w for w in others if w in EXCLUDING_WORDS and not name.startswith(w)]:
            text = f"the name of the kernel or the file says '{foreign[0]}', which is not part of {name}"
            candidate.contradict("name", foreign[0], text)
    formula, description = _formula_operator(summary)
    if formula == name:
        add(FORMULA_SCORE, f"it {description}")
    elif formula and name in FORMULA_OPERATORS:
        candidate.contradict("formula", formula, f"the kernel {description}, which is not {name}")
    functions = (
        sorted(word for word in summary.reachable_names if MATHEMATICS.fullmatch(word))
        if name in ARITHMETIC_OPERATORS
        else []
    )
    if functions:
        text = f"the kernel calls {functions[0]}(), which {name} does not need"
        candidate.contradict("formula", functions[0], text)
    matched = [n for n, tensor in candidate.tensor_by_pointer.items() if plain_parameter_name(n) == tensor]
    if matched:
        add(TENSOR_NAME_SCORE * len(matched), f"parameters have the names of its tensors: {', '.join(matched)}")
    if not candidate.missing_axes and not candidate.contradictions:
        add(
            SIZES_SCORE,
            f"{len(candidate.tensor_by_pointer)} tensors and the sizes {', '.join(tensor_axes(problem))} match",
        )


def _formula_operator(summary: KernelSummary) -> tuple[str, str]:
    """Return the operator of a kernel's formula, and a clause that describes it; two empty strings if unknown."""
    if summary.formula == "same":
        size_names = {p.name for p in summary.parameters if not (p.is_pointer or p.texture_kind)}
        if summary.is_moved and size_names and not size_names & summary.multiplied_names:
            return "", ""  # Such as a reversal: a transpose multiplies an index by a size.
        return (
            ("transpose", "stores what it reads at another index") if summary.is_moved else ("copy", "copies elements")
        )
    descriptions = {"add": "stores the sum of two elements", "relu": "stores the larger of an element and 0"}
    return summary.formula, descriptions.get(summary.formula, "")
