"""Find the operator that a kernel computes, from its tensors, name, formula and sizes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.adopting.host_launches import Parameter
from opbench.adopting.kernel_facts import KernelFacts
from opbench.adopting.stores import ADDED
from opbench.kernels.operator import Operator
from opbench.kernels.pointer_types import dtype_of
from opbench.kernels.torch_task import TorchOperator
from opbench.source.tokens import words

NON_INTEGER_TYPE = r"\b(float|double|bool|half|__half|bfloat16)\b"
COUNT_NAMES = frozenset(
    ("n", "size", "len", "length", "num", "count", "numelements", "num_elements", "total", "nelem", "elements", "numel")
)
AXIS_NAMES: Mapping[str, tuple[str, ...]] = {
    "width": ("w", "cols"), "height": ("h", "rows"), "ncols": ("cols",), "columns": ("cols",), "nrows": ("rows",),
    "numcols": ("cols",), "numcolumns": ("cols",), "numrows": ("rows",), "row": ("rows",), "col": ("cols",),
    "batchsize": ("rows", "m"), "batch": ("rows", "m"), "numclasses": ("cols",), "classes": ("cols",),
    "hiddensize": ("cols",), "dim": ("cols",), "ny": ("rows",), "nx": ("cols",), "infeatures": ("k",),
    "outfeatures": ("n",), "inputsize": ("k",), "outputsize": ("n",), "kernelsize": ("window",),
    "poolsize": ("window",),
    "stride": ("stride",), "padding": ("padding",), "pad": ("padding",), "channels": ("c",), "batches": ("n",),
    "numarows": ("m",), "arows": ("m",), "rowsa": ("m",), "heighta": ("m",), "ha": ("m",), "numcrows": ("m",),
    "crows": ("m",), "rowsc": ("m",), "numacolumns": ("k",), "numacols": ("k",), "acols": ("k",), "colsa": ("k",),
    "widtha": ("k",), "wa": ("k",), "numbrows": ("k",), "brows": ("k",), "rowsb": ("k",), "heightb": ("k",),
    "hb": ("k",), "numbcolumns": ("n",), "numbcols": ("n",), "bcols": ("n",), "colsb": ("n",), "widthb": ("n",),
    "wb": ("n",), "numccolumns": ("n",), "ccols": ("n",), "colsc": ("n",),
}  # fmt: skip
"""What parameters are called of which axis, without underscores, where the problem has it."""
OUTPUT_NAMES = frozenset(["out", "output", "dst", "dest", "result", "res", "y", "c", "ret"])
OPERATOR_ALIASES = {
    "gemm": "matmul", "sgemm": "matmul", "hgemm": "matmul", "mm": "matmul", "matrixmul": "matmul", "mmul": "matmul",
    "matrixmultiply": "matmul", "matrixmultiplication": "matmul", "matmult": "matmul", "matrixmult": "matmul",
    "vecadd": "add", "vectoradd": "add", "addvectors": "add", "vectadd": "add", "matrixadd": "add", "matadd": "add",
    "sumarrays": "add", "vectoraddition": "add", "vecsum": "add", "vectorsum": "add", "reduce": "sum",
    "reduction": "sum", "maxpool": "maxpool2d", "avgpool": "avgpool2d", "batchnorm": "batchnorm2d", "conv": "conv2d",
    "convolution": "conv2d", "memcpy": "copy", "upsample": "upsample2d", "transposed": "transpose",
    "matrixtranspose": "transpose", "transposematrix": "transpose",
}  # fmt: skip
"""What kernels are called of which operator."""
FOREIGN_WORDS = words(
    """
    leaky log loss prod product mean avg average min max argmax argmin lower upper triangular sparse csr coo ell
    spmv scan prefix depthwise masked causal backward bwd grad gradient gradients int8 quant quantized fp8 complex
    leakyrelu prelu relu6 gelu bias scale scaled square squared cube
    mul multiply sub subtract div divide norm histogram segmented batched strided warmup oned threed
    """
)
"""Words of a name that say something else than the operator that another word of it names."""
FOREIGN_WORDS_OF_OPERATOR: Mapping[str, frozenset[str]] = {
    "matmul": words("vector vec mv matvec"),
    "transpose": words("conv convolution"),
}
"""The same for one operator."""
FUSED_WORDS = frozenset(("add", "relu", "softmax"))
"""Operators that a kernel does together with another one if its name has both."""
SIMPLE = frozenset(("add", "relu", "copy", "transpose", "sum", "matmul", "softmax"))
"""Operators that one store which is another operator's whole formula rules out."""
PLAIN = SIMPLE - {"softmax"}
"""Operators that need no function of mathematics, and no number of the host's but a factor of 1."""
MATHEMATICS = re.compile(
    r"(__)?(sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|atan2|exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sqrt|rsqrt|cbrt"
    r"|erf|erfc|hypot|fmod|sincos|sinpi|cospi)f?"
)
"""Functions of mathematics, as CUDA calls them."""
NAMED, IN_NAME, OF_FILE, BY_FORMULA, BY_TENSOR, BY_SIZES = 5.0, 4.0, 2.0, 4.0, 0.5, 1.0
"""What each piece of evidence weighs."""
MIN_SCORE = 2.5
"""From here on an operator is taken without being asked for."""
MAX_SUGGESTIONS = 3
"""Operators that a refusal names."""


@dataclass(frozen=True)
class Guess:
    """A guess about a kernel, with its evidence."""

    what: str
    value: str
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what} is taken to be {self.value} ({'; '.join(self.evidence)})"


@dataclass(frozen=True)
class Contradiction:
    """A fact in the file that contradicts a header for this operator."""

    kind: str
    """ "tensors", "input written", "output only read", "output read", "output size", "element type", "axis", "sizes",
    "name", "formula", "layout", "grid" or "launch"."""
    name: str
    """The parameter, tensor, axis or word that it is about."""
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass
class Match:
    """A kernel's parameters matched with the tensors and axes of one operator."""

    problem: Operator
    names: dict[str, str] = field(default_factory=dict)
    """Tensors and workspaces by pointer."""
    in_place: tuple[str, str] | None = None
    axes: dict[str, str] = field(default_factory=dict)
    """Axes by whole number."""
    equal: list[str] = field(default_factory=list)
    """Requirements that follow from one number standing for several axes."""
    extra: list[str] = field(default_factory=list)
    """Pointers that are no tensor's and that the kernel writes: workspaces, if their sizes are known."""
    contradictions: list[Contradiction] = field(default_factory=list)
    guesses: list[Guess] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    score: float = 0.0

    @property
    def operator(self) -> str:
        """Return the operator's name."""
        return self.problem.name

    @property
    def modes(self) -> dict[str, str]:
        """Return the modes that differ from their defaults."""
        return {k: str(self.problem.axes[k]) for k, d in self.problem.modes().items() if self.problem.axes[k] != d}

    @property
    def missing(self) -> list[str]:
        """Return the axes of tensors whose sizes no parameter gives."""
        known_axes = set(self.axes.values()) | {rule.split(" == ")[0] for rule in self.equal}
        return [axis for axis in tensor_axes(self.problem) if axis not in known_axes]


def tensor_axes(problem: Operator) -> list[str]:
    """Return the axes in the shapes of tensors, in declared order."""
    named = {axis for shape in (*problem.inputs.values(), *problem.outputs.values()) for axis in shape.split()}
    return [name for name, value in problem.axes.items() if isinstance(value, int) and name in named]


def rank_operators(facts: KernelFacts, stem: str, operators: Mapping[str, type[Operator]]) -> list[Match]:
    """Return the operators that a kernel may compute, most likely first; those with a contradiction last."""
    result = []
    for operator in operators.values():
        matches = [match(facts, problem) for problem in _tensor_signatures(operator)]
        best = min(matches, key=lambda m: (len(m.contradictions), len(m.modes)))
        _add_evidence(best, facts, stem, operators.keys())
        result.append(best)
    return sorted(result, key=lambda m: (bool(m.contradictions), -m.score, len(m.missing)))


def nearest_operators(ranked: Sequence[Match], facts: KernelFacts) -> list[str]:
    """Return the operators with the most similar tensors and names, for a message."""

    def distance(candidate: Match) -> tuple[float, float]:
        read, written = len(facts.pointers) - len(facts.stored), len(facts.stored)
        tensors = abs(len(candidate.problem.inputs) - read) + abs(len(candidate.problem.outputs) - written)
        return tensors - candidate.score, tensors

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


# Tensors ----------------------------------------------------------------------------------------------------------


def match(facts: KernelFacts, problem: Operator) -> Match:
    """Match a kernel's pointers with a problem's tensors, and its numbers with axes; collect contradictions."""
    candidate = Match(problem)
    viewed = _match_textures(facts.parameters, problem)
    inputs = [name for name in problem.inputs if name not in viewed.values()]
    outputs = [name for name in problem.outputs if name not in viewed.values()]
    _match_pointers(candidate, facts, inputs, outputs, bool(viewed))
    candidate.names |= viewed
    _match_numbers(candidate, facts)
    if problem.name == "matmul":
        _order_matmul(candidate, facts)
    if problem.name == "transpose":
        _order_transpose(candidate, facts)
    _contradict(candidate, facts, inputs, outputs)
    _contradict_strides(candidate, facts)
    return candidate


def _match_textures(parameters: Sequence[Parameter], problem: Operator) -> dict[str, str]:
    """Match textures with inputs and surfaces with outputs, by name or in order."""
    result: dict[str, str] = {}
    for kind, tensors in (("surfaces", problem.outputs), ("textures", problem.inputs)):
        seen = [p.name for p in parameters if p.views == kind]
        left = [name for name in tensors if name not in seen]
        result |= {name: name if name in tensors else left.pop(0) if left else name for name in seen}
    return result


def plain_parameter_name(name: str) -> str:
    """Return a parameter's name without marks of its memory, such as `d_`."""
    return re.sub(r"^(?:d|h|dev|device|g|gpu|p|ptr)_|^(?:d|dev)(?=[A-Z])|_(?:d|dev|device|gpu|ptr)$", "", name).lower()


def _match_pointers(
    candidate: Match, facts: KernelFacts, inputs: Sequence[str], outputs: Sequence[str], is_viewed: bool
) -> None:
    pointers, problem = facts.pointers, candidate.problem
    if not is_viewed and len(pointers) == len(outputs) and len(inputs) == len(outputs) == 1:
        candidate.names, candidate.in_place = {pointers[0].name: outputs[0]}, (outputs[0], inputs[0])
        return
    if problem.in_place and len(pointers) == len(inputs) + len(outputs) - len(problem.in_place):
        written = _written(candidate, facts, outputs)
        others = [name for name in inputs if name not in problem.in_place.values()]
        candidate.names = {p.name: name for p, name in zip(written, outputs, strict=False)}
        candidate.names |= _by_name_or_order([p for p in pointers if p not in written], others)
        candidate.in_place = ("", "")
        return
    written = _written(candidate, facts, outputs)
    candidate.names = _by_name_or_order(written, outputs)
    left = [p for p in pointers if p not in written]
    if len(left) > len(inputs):
        own = [p for p in left if p.name in facts.stored and plain_parameter_name(p.name) not in inputs]
        candidate.extra = [p.name for p in own[: len(left) - len(inputs)]]
        left = [p for p in left if p.name not in candidate.extra]
    candidate.names |= _by_name_or_order(left, inputs)


def _by_name_or_order(pointers: Sequence[Parameter], tensors: Sequence[str]) -> dict[str, str]:
    same = {p.name: name for p in pointers for name in tensors if plain_parameter_name(p.name) == name.lower()}
    if len(same) == len(pointers):
        return same
    return {p.name: name for p, name in zip(pointers, tensors, strict=False)}


def _written(candidate: Match, facts: KernelFacts, outputs: Sequence[str]) -> list[Parameter]:
    """Return the pointers that are outputs.

    These are the stored ones; if there are too many, those that are never read; else those with an output's
    name.
    """
    free = [p for p in facts.pointers if not p.is_const]
    stored = [p for p in free if p.name in facts.stored]
    if len(stored) == len(outputs):
        return stored
    if len(stored) > len(outputs):
        for several in (
            [p for p in stored if p.name not in facts.read],
            [p for p in stored if plain_parameter_name(p.name) in {*outputs, *OUTPUT_NAMES}],
        ):
            if len(several) == len(outputs):
                return several
        free = stored
    elif not facts.is_readable and len(free) == len(outputs):
        return free
    named = [
        p
        for p in facts.pointers
        if plain_parameter_name(p.name) in OUTPUT_NAMES or plain_parameter_name(p.name) in outputs
    ]
    chosen = named if len(named) == len(outputs) else free[len(free) - len(outputs) :]
    if facts.pointers:
        how = "by its name" if chosen is named else "by its place among the parameters"
        candidate.guesses.append(Guess("the output", ", ".join(p.name for p in chosen) or "none", (how,)))
    return chosen


# Axes -------------------------------------------------------------------------------------------------------------


def _match_numbers(candidate: Match, facts: KernelFacts) -> None:
    problem = candidate.problem
    numbers = [
        p for p in facts.parameters if not (p.is_pointer or p.views or re.search(NON_INTEGER_TYPE, p.type)) and p.name
    ]
    axes = [name for name, value in problem.axes.items() if isinstance(value, int)]
    sizes = tensor_axes(problem)
    for number in numbers:
        name = number.name.lower().strip("_")
        axis_names = (name, *AXIS_NAMES.get(name.replace("_", ""), ()))
        axis = next((axis for word in axis_names for axis in axes if axis.lower() == word), "")
        if axis:
            candidate.axes[number.name] = axis
    if isinstance(problem, TorchOperator) and len(numbers) == 1 < len(axes) and numbers[0].name.lower() in COUNT_NAMES:
        size = f"{next(iter(problem.outputs))}_size"
        candidate.axes = {numbers[0].name: size}
        candidate.guesses.append(
            Guess(numbers[0].name, size, ("it is the only size, and its name is that of a count",))
        )
    elif len(axes) == 1 and len(numbers) > 1 and "y" in facts.names:
        candidate.axes = {}  # rows and columns: their product is the size, which the buffers say
    elif len(axes) == 1 and numbers and not candidate.axes:
        counts = [p for p in numbers if p.name.lower() in COUNT_NAMES] or (numbers if len(numbers) == 1 else [])
        candidate.axes = {p.name: axes[0] for p in counts}
    elif len(sizes) > 1 and len(numbers) == 1 and len(set(sizes)) == len(axes) and problem.name != "softmax":
        candidate.axes = {numbers[0].name: sizes[0]}
        candidate.equal = [f"{axis} == {sizes[0]}" for axis in sizes[1:]]
        candidate.guesses.append(Guess(numbers[0].name, " = ".join(sizes), ("it is the only size",)))
    elif len(candidate.axes) < len(numbers) == len(axes):
        left = [axis for axis in axes if axis not in candidate.axes.values()]
        missing = [p for p in numbers if p.name not in candidate.axes]
        if len(left) != len(missing):
            candidate.axes = {}
            left, missing = axes, numbers
        own = {p.name: axis for p, axis in zip(missing, left, strict=True)}
        candidate.axes |= own
        candidate.guesses += [Guess(name, axis, ("by its place among the parameters",)) for name, axis in own.items()]
    elif not candidate.axes and len(numbers) == 1 and "cols" in axes:
        candidate.axes = {numbers[0].name: "cols"}
        candidate.guesses.append(Guess(numbers[0].name, "cols", ("it is the only size",)))


def _order_matmul(candidate: Match, facts: KernelFacts) -> None:
    """Distinguish n from k by the output's index, as in `C[row * N + col]`, because names of axes differ."""
    index = next(
        (i for name, listed in facts.indices.items() if candidate.names.get(name) == "out" for i in listed), ""
    )
    row, name = _stride(index, candidate.axes)
    axis = candidate.axes.get(name, "")
    if axis == "m" and not candidate.equal and re.search(r"col|x$|^j$", row.lower()):
        text = f"the output's columns are {name} apart: it lies column by column, and matmul's row by row"
        candidate.contradictions.append(Contradiction("layout", "out", text))
    elif axis and len(set(candidate.axes.values())) == 3:
        inner = {
            _stride(i, candidate.axes)[1]
            for p, t in candidate.names.items()
            if t == "a"
            for i in facts.loaded.get(p, ())
        }
        inner -= {""}
        inner = inner if len(inner) == 1 and name not in inner else set()
        why = f"the output's rows are {name} apart"
        if inner:
            why += f", a's {', '.join(inner)}"
            _set_axes(
                candidate,
                {size: ("n" if size == name else "k" if size in inner else "m", why) for size in candidate.axes},
            )
        else:
            swapped = {axis: "n", "n": axis}
            _set_axes(candidate, {size: (swapped.get(own, own), why) for size, own in candidate.axes.items()})
    _contradict_columns(candidate, facts, index)


def _contradict_columns(candidate: Match, facts: KernelFacts, index: str) -> None:
    """Add a contradiction for a matrix that is read by columns, judged by the index of the output."""
    factors = PRODUCT.findall(index)
    column = set(re.findall(r"[A-Za-z_]\w*", index)) - {*itertools.chain(*factors)}
    if len(factors) != 1 or len(column) != 1:
        return
    row = {*factors[0]} - candidate.axes.keys()
    for pointer, tensor in candidate.names.items():
        for loaded in facts.loaded.get(pointer, ()):
            strided = {*itertools.chain(*PRODUCT.findall(loaded))}
            added = set(re.findall(r"[A-Za-z_]\w*", loaded)) - strided
            if (tensor == "b" and column & strided) or (tensor == "a" and row & added and strided):
                text = f"'{pointer}' is read at {loaded}: it lies column by column, and matmul's {tensor} row by row"
                candidate.contradictions.append(Contradiction("layout", tensor, text))
                break


PRODUCT = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\*([A-Za-z_]\w*)(?![\w.])")
"""Two names multiplied."""


def _stride(index: str, axes: Collection[str]) -> tuple[str, str]:
    """Return the row and its factor in an index such as `row * n + col`; two empty strings if there is none."""
    pairs = [pair for pair in re.findall(r"(\w+)\*(\w+)", index) if {*pair} & set(axes)]
    row, name = sorted(pairs[0], key=lambda factor: factor in axes) if pairs else ("", "")
    return row, name


def _set_axes(candidate: Match, axes: Mapping[str, tuple[str, str]]) -> None:
    """Assign other axes to sizes, with the reason; remove guesses that differ."""
    changed = {name: (axis, why) for name, (axis, why) in axes.items() if candidate.axes[name] != axis}
    candidate.axes |= {name: axis for name, (axis, _) in changed.items()}
    candidate.guesses = [guess for guess in candidate.guesses if guess.what not in changed]
    candidate.guesses += [Guess(name, axis, (why,)) for name, (axis, why) in changed.items()]


def _order_transpose(candidate: Match, facts: KernelFacts) -> None:
    """Distinguish rows from cols by the indices: output elements in a column are `rows` apart, inputs `cols`."""
    if candidate.equal or sorted(candidate.axes.values()) != ["cols", "rows"]:
        return
    stored = [index for listed in facts.indices.values() for index in listed]
    strides = [_strides(index, candidate.axes) for index in (*stored, *facts.loaded_at)]
    if len(strides) != 2 or any(len(names) != 1 for names in strides) or set(stored) == set(facts.loaded_at):
        return  # one index for both is a copy: a wrong transpose, and no other layout
    out, x = (names.pop() for names in strides)
    if out == x:
        text = f"the rows of both the input and the output are {out} apart, and transpose's only where it is a square"
        candidate.contradictions.append(Contradiction("layout", "out", text))
    elif candidate.axes[out] == "cols":
        why = f"the output's rows are {out} apart, the input's {x}"
        _set_axes(candidate, {out: ("rows", why), x: ("cols", why)})


def _strides(index: str, axes: Collection[str]) -> set[str]:
    """Return the sizes by which an index is multiplied."""
    near = re.findall(r"(?<=\*)\w+|\w+(?=\*)", index)
    return {name for name in near if name in axes}


def _contradict_strides(candidate: Match, facts: KernelFacts) -> None:
    """Add a contradiction for padded rows, as in `row * (cols + 1) + col`."""
    for index in (*itertools.chain.from_iterable(facts.indices.values()), *facts.loaded_at):
        padded = re.search(r"\*\((\w+)\+\w+\)|\((\w+)\+\w+\)\*", index)
        if padded and (name := padded[1] or padded[2]) in candidate.axes:
            text = f"a row is longer than {name} elements ({index}), and {candidate.operator}'s rows follow each other"
            candidate.contradictions.append(Contradiction("layout", name, text))
            return


# What contradicts -------------------------------------------------------------------------------------------------


def _contradict(candidate: Match, facts: KernelFacts, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    add = candidate.contradictions.append
    by_tensor = {tensor: name for name, tensor in candidate.names.items()}
    problem, pointers = candidate.problem, facts.pointers
    spare = [p.name for p in pointers if p.name not in candidate.names and p.name not in candidate.extra]
    if spare or len(pointers) < 1 <= len([*inputs, *outputs]):
        many = f"the kernel has {len(pointers)} pointer{'s' if len(pointers) != 1 else ''}"
        add(Contradiction("tensors", spare[0] if spare else "", f"{many}, {problem.name} {_tensors(problem)}"))
    updated = {*problem.in_place.values()} if candidate.in_place == ("", "") else set()
    updated |= {candidate.in_place[1]} if candidate.in_place and candidate.in_place[1] else set()
    for tensor in (*inputs, *outputs):
        if tensor not in by_tensor and tensor not in updated and pointers and not spare:
            add(Contradiction("tensors", tensor, f"no pointer of the kernel is {problem.name}'s {tensor}"))
    for name in candidate.extra:
        if name not in facts.stored or name in facts.read_first:
            add(Contradiction("tensors", name, f"'{name}' is no tensor of {problem.name}, and the kernel reads it"))
    for name, tensor in candidate.names.items() if facts.names else ():
        is_updated = tensor in updated or bool(candidate.in_place and tensor in problem.outputs)
        candidate.contradictions += _of_direction(facts, problem, name, tensor, is_updated)
    dtypes = {t.name: t.dtype for t in (*problem.input_tensors(), *problem.output_tensors())}
    for name, tensor in candidate.names.items():
        written = facts.elements.get(name, "")
        kind = dtype_of(written).replace("u16", "")  # which may hold the bits of a half
        if kind and tensor in dtypes and kind != dtypes[tensor]:
            add(
                Contradiction(
                    "element type", tensor, f"'{name}' is {written}*, and {problem.name}'s {tensor} is {dtypes[tensor]}"
                )
            )


def _of_direction(
    facts: KernelFacts, problem: Operator, name: str, tensor: str, is_updated: bool
) -> Iterator[Contradiction]:
    """Yield contradictions between a kernel's accesses through one pointer and the role of the tensor."""
    if tensor in problem.inputs and not is_updated and name in facts.stored:
        text = f"the kernel overwrites its input {tensor} (parameter '{name}'), which {problem.name} leaves as it is"
        yield Contradiction("input written", tensor, f"{text}: a check says that the input was changed")
    if tensor in problem.outputs and name not in facts.stored and name in facts.read:
        text = f"the kernel only reads '{name}', {problem.name}'s output"
        yield Contradiction("output only read", tensor, text)
    if tensor in problem.outputs and facts.names and name not in {*facts.stored, *facts.read}:
        yield Contradiction("output only read", tensor, f"no store to '{name}', {problem.name}'s output, can be read")
    only_added = facts.stored.get(name) == ADDED
    if (
        tensor in problem.outputs
        and not is_updated
        and name in facts.stored
        and name in facts.read_first
        and not only_added
    ):
        text = f"the kernel reads '{name}' before it writes it, and {problem.name}'s output holds nothing then"
        yield Contradiction("output read", tensor, text)
    several = [index for index in facts.indices.get(name, ()) if not index.isdigit()]
    if problem.outputs.get(tensor) == "1" and several:
        text = f"the kernel writes {name}[{several[0]}], and {problem.name}'s {tensor} has one element"
        yield Contradiction("output size", tensor, text)


def _tensors(problem: Operator) -> str:
    return f"has {', '.join(problem.inputs)} → {', '.join(problem.outputs)}"


# Evidence ---------------------------------------------------------------------------------------------------------


def words_of(name: str) -> list[str]:
    """Return the lower-case words of a name: `vectorAdd_v2` → vector, add, v, 2; `conv1d` keeps its `1d`."""
    text = re.sub(r"(?<![0-9A-Za-z])?([123])([dD])(?![a-z])", r"_\1d_", name)
    return [part.lower() for part in re.findall(r"[123]d|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)]


def named_operator(name: str, known: Collection[str]) -> tuple[str, frozenset[str]]:
    """Return the operator that a name refers to, and the words that do so; "" without one."""
    parts = words_of(name)
    spans = [(i, j) for i in range(len(parts)) for j in range(len(parts), i, -1)]
    for i, j in sorted(spans, key=lambda span: -sum(map(len, parts[span[0] : span[1]]))):
        for joined in ("".join(parts[i:j]), "_".join(parts[i:j])):
            operator = OPERATOR_ALIASES.get(joined, joined)
            if operator in known:
                return operator, frozenset(parts[i:j])
    return "", frozenset()


def _add_evidence(candidate: Match, facts: KernelFacts, stem: str, known: Collection[str]) -> None:
    """Add up the evidence for an operator; a different name or formula is a contradiction."""
    problem, name = candidate.problem, candidate.operator

    def says(weight: float, text: str) -> None:
        candidate.score += weight
        candidate.evidence.append(text)

    own, used = named_operator(facts.name, known)
    if own == name:
        says(NAMED if set(words_of(facts.name)) <= used | {"kernel"} else IN_NAME, f"the kernel is named {facts.name}")
        foreign = [w for w in words_of(facts.name) if w in FOREIGN_WORDS and w not in used and w not in name]
        foreign += [w for w in words_of(facts.name) if w in FOREIGN_WORDS_OF_OPERATOR.get(name, ())]
        foreign += [w for w in words_of(facts.name) if w in ("1d", "3d") and "2d" in name]
        foreign += [w for w in words_of(facts.name) if w not in used and w in FUSED_WORDS - {name}]
        if foreign:
            candidate.contradictions.append(
                Contradiction("name", foreign[0], f"the kernel's name says '{foreign[0]}', which {name} does not do")
            )
    elif not own and (of_file := named_operator(stem, known))[0] == name:
        says(OF_FILE, f"the file is named {stem}")
        others = (w for w in (*words_of(facts.name), *words_of(stem)) if w not in of_file[1])
        if foreign := [w for w in others if w in FOREIGN_WORDS and not name.startswith(w)]:
            text = f"the name of the kernel or the file says '{foreign[0]}', which {name} does not do"
            candidate.contradictions.append(Contradiction("name", foreign[0], text))
    formula, does = _formula_operator(facts)
    if formula == name:
        says(BY_FORMULA, f"it {does}")
    elif formula and name in SIMPLE:
        candidate.contradictions.append(Contradiction("formula", formula, f"the kernel {does}, which is no {name}"))
    functions = sorted(word for word in facts.called_names if MATHEMATICS.fullmatch(word)) if name in PLAIN else []
    if functions:
        text = f"the kernel calls {functions[0]}(), which {name} does not need"
        candidate.contradictions.append(Contradiction("formula", functions[0], text))
    matched = [n for n, tensor in candidate.names.items() if plain_parameter_name(n) == tensor]
    if matched:
        says(BY_TENSOR * len(matched), f"parameters named as its tensors: {', '.join(matched)}")
    if not candidate.missing and not candidate.contradictions:
        says(BY_SIZES, f"its tensors are {len(candidate.names)} and its sizes {', '.join(tensor_axes(problem))}")


def _formula_operator(facts: KernelFacts) -> tuple[str, str]:
    """Return the operator of a kernel's formula, and a description of it; two empty texts for an unknown formula."""
    if facts.formula == "same":
        numbers = {p.name for p in facts.parameters if not (p.is_pointer or p.views)}
        if facts.moved and numbers and not numbers & facts.multiplied:
            return "", ""  # such as a reversal: to find another row takes a product with a size
        return ("transpose", "stores what it reads at another index") if facts.moved else ("copy", "copies elements")
    says = {"add": "stores the sum of two elements", "relu": "stores the larger of an element and 0"}
    return facts.formula, says.get(facts.formula, "")


def fields_with_defaults(problem: Operator) -> dict[str, int]:
    """Return the axes that have a default, with the default."""
    return {
        f.name: f.default
        for f in dataclasses.fields(problem)
        if isinstance(f.default, int) and not isinstance(f.default, bool)
    }
