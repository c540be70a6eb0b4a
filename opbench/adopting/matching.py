"""Match a kernel's parameters with the tensors and axes of one operator, and find what contradicts the match."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opbench import units
from opbench.adopting.host_launches import Parameter
from opbench.adopting.kernel_summary import KernelSummary
from opbench.adopting.stores import ADDED
from opbench.kernels.operator import Operator
from opbench.kernels.pointer_types import dtype_of
from opbench.kernels.torch_task import TorchOperator

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
"""Axes that a size parameter can stand for, by the parameter's lower-case name without underscores."""
OUTPUT_NAMES = frozenset(["out", "output", "dst", "dest", "result", "res", "y", "c", "ret"])


@dataclass(frozen=True)
class Guess:
    """An assumption about a value in a proposed header, with the reasons for it."""

    subject: str
    """The axis, parameter or buffer that the assumption is about."""
    value: str
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.subject} is taken to be {self.value} ({'; '.join(self.evidence)})"


@dataclass(frozen=True)
class Contradiction:
    """A property of the file that the proposed header would contradict."""

    kind: str
    """ "tensors", "input written", "output only read", "output read", "output size", "element type", "axis", "sizes",
    "name", "formula", "layout", "grid" or "launch"."""
    name: str
    """The parameter, tensor, axis or word that the contradiction is about."""
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass
class Match:
    """A kernel's parameters matched with the tensors and axes of one operator."""

    problem: Operator
    tensor_by_pointer: dict[str, str] = field(default_factory=dict)
    """Tensors and workspaces, by the name of the kernel's pointer parameter."""
    in_place: tuple[str, str] | None = None
    """The output and the input that share memory; two empty strings if the operator itself is in-place."""
    axis_by_parameter: dict[str, str] = field(default_factory=dict)
    """Axes, by the name of the kernel's size parameter."""
    equal_axes: dict[str, str] = field(default_factory=dict)
    """Axes, each with the axis that it must equal, because one size parameter stands for both."""
    workspace_pointers: list[str] = field(default_factory=list)
    """Pointers to which the kernel writes and which have no tensor: they become workspaces if their sizes are known."""
    contradictions: list[Contradiction] = field(default_factory=list)
    guesses: list[Guess] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    score: float = 0.0

    def guess(self, subject: str, value: str, reason: str) -> None:
        """Add a guess."""
        self.guesses.append(Guess(subject, value, (reason,)))

    def contradict(self, kind: str, name: str, text: str) -> None:
        """Add a contradiction; see `Contradiction` for its kinds."""
        self.contradictions.append(Contradiction(kind, name, text))

    @property
    def operator(self) -> str:
        """Return the operator's name."""
        return self.problem.name

    @property
    def modes(self) -> dict[str, str]:
        """Return the modes that differ from their defaults."""
        return {k: str(self.problem.axes[k]) for k, d in self.problem.modes().items() if self.problem.axes[k] != d}

    @property
    def missing_axes(self) -> list[str]:
        """Return the axes of tensors that no size parameter stands for."""
        known_axes = set(self.axis_by_parameter.values()) | self.equal_axes.keys()
        return [axis for axis in tensor_axes(self.problem) if axis not in known_axes]


def tensor_axes(problem: Operator) -> list[str]:
    """Return the axes in the shapes of tensors, in declared order."""
    used_axes = {axis for shape in (*problem.inputs.values(), *problem.outputs.values()) for axis in shape.split()}
    return [name for name, value in problem.axes.items() if isinstance(value, int) and name in used_axes]


# Tensors ----------------------------------------------------------------------------------------------------------


def match_problem(summary: KernelSummary, problem: Operator) -> Match:
    """Match a kernel's pointers with a problem's tensors, and its size parameters with axes; collect contradictions."""
    candidate = Match(problem)
    tensors_by_texture = _match_textures(summary.parameters, problem)
    inputs = [name for name in problem.inputs if name not in tensors_by_texture.values()]
    outputs = [name for name in problem.outputs if name not in tensors_by_texture.values()]
    _match_pointers(candidate, summary, inputs, outputs, bool(tensors_by_texture))
    candidate.tensor_by_pointer |= tensors_by_texture
    _match_sizes(candidate, summary)
    if problem.name == "matmul":
        _order_matmul(candidate, summary)
    if problem.name == "transpose":
        _order_transpose(candidate, summary)
    _add_contradictions(candidate, summary, inputs, outputs)
    _contradict_strides(candidate, summary)
    return candidate


def _match_textures(parameters: Sequence[Parameter], problem: Operator) -> dict[str, str]:
    """Return the tensor of each texture (an input) and surface (an output), by the parameter's name."""
    result: dict[str, str] = {}
    for texture_kind, tensors in (("surfaces", problem.outputs), ("textures", problem.inputs)):
        parameter_names = [p.name for p in parameters if p.texture_kind == texture_kind]
        unmatched = [name for name in tensors if name not in parameter_names]
        result |= {
            name: name if name in tensors else unmatched.pop(0) if unmatched else name for name in parameter_names
        }
    return result


def plain_parameter_name(name: str) -> str:
    """Return a parameter's name in lower case, without prefixes and suffixes such as `d_` that say where its
    memory is.
    """
    return re.sub(r"^(?:d|h|dev|device|g|gpu|p|ptr)_|^(?:d|dev)(?=[A-Z])|_(?:d|dev|device|gpu|ptr)$", "", name).lower()


def _match_pointers(
    candidate: Match, summary: KernelSummary, inputs: Sequence[str], outputs: Sequence[str], has_textures: bool
) -> None:
    """Set the tensor of each pointer parameter of a match, its in-place pair, and its extra pointers.

    `inputs` and `outputs` are the tensors without a texture or surface; `has_textures` says whether other tensors have
    one.
    """
    pointers, problem = summary.pointers, candidate.problem
    if not has_textures and len(pointers) == len(outputs) and len(inputs) == len(outputs) == 1:
        candidate.tensor_by_pointer, candidate.in_place = {pointers[0].name: outputs[0]}, (outputs[0], inputs[0])
        return
    if problem.in_place and len(pointers) == len(inputs) + len(outputs) - len(problem.in_place):
        output_pointers = _output_pointers(candidate, summary, outputs)
        other_inputs = [name for name in inputs if name not in problem.in_place.values()]
        candidate.tensor_by_pointer = {p.name: name for p, name in zip(output_pointers, outputs, strict=False)}
        candidate.tensor_by_pointer |= _by_name_or_order(
            [p for p in pointers if p not in output_pointers], other_inputs
        )
        candidate.in_place = ("", "")
        return
    output_pointers = _output_pointers(candidate, summary, outputs)
    candidate.tensor_by_pointer = _by_name_or_order(output_pointers, outputs)
    input_pointers = [p for p in pointers if p not in output_pointers]
    if len(input_pointers) > len(inputs):
        workspace_pointers = [
            p for p in input_pointers if p.name in summary.store_kinds and plain_parameter_name(p.name) not in inputs
        ]
        candidate.workspace_pointers = [p.name for p in workspace_pointers[: len(input_pointers) - len(inputs)]]
        input_pointers = [p for p in input_pointers if p.name not in candidate.workspace_pointers]
    candidate.tensor_by_pointer |= _by_name_or_order(input_pointers, inputs)


def _by_name_or_order(pointers: Sequence[Parameter], tensors: Sequence[str]) -> dict[str, str]:
    """Return the tensor of each pointer: by equal names if all pointers have one, else in order."""
    by_name = {p.name: name for p in pointers for name in tensors if plain_parameter_name(p.name) == name.lower()}
    if len(by_name) == len(pointers):
        return by_name
    return {p.name: name for p, name in zip(pointers, tensors, strict=False)}


def _output_pointers(candidate: Match, summary: KernelSummary, outputs: Sequence[str]) -> list[Parameter]:
    """Return the pointers that are outputs: those to which the kernel stores.

    If there are too many, these are the ones that are never read, or that have an output's name. If the number still
    differs, they are guessed by name or by position, with a note in the match's guesses.
    """
    writable = [p for p in summary.pointers if not p.is_const]
    stored = [p for p in writable if p.name in summary.store_kinds]
    if len(stored) == len(outputs):
        return stored
    if len(stored) > len(outputs):
        for subset in (
            [p for p in stored if p.name not in summary.read_pointers],
            [p for p in stored if plain_parameter_name(p.name) in {*outputs, *OUTPUT_NAMES}],
        ):
            if len(subset) == len(outputs):
                return subset
        writable = stored
    elif not summary.is_readable and len(writable) == len(outputs):
        return writable
    named = [
        p
        for p in summary.pointers
        if plain_parameter_name(p.name) in OUTPUT_NAMES or plain_parameter_name(p.name) in outputs
    ]
    chosen = named if len(named) == len(outputs) else writable[len(writable) - len(outputs) :]
    if summary.pointers:
        reason = "by its name" if chosen is named else "by its position among the parameters"
        candidate.guess("the output", ", ".join(p.name for p in chosen) or "none", reason)
    return chosen


# Axes -------------------------------------------------------------------------------------------------------------


def _match_sizes(candidate: Match, summary: KernelSummary) -> None:
    """Set the axis of each size parameter of a match: by its name, else by the only or remaining choice.

    Choices other than by name are added to the match's guesses.
    """
    problem = candidate.problem
    size_parameters = [p for p in summary.parameters if p.is_whole_number and p.name]
    axes = [name for name, value in problem.axes.items() if isinstance(value, int)]
    tensor_axis_names = tensor_axes(problem)
    for size_parameter in size_parameters:
        name = size_parameter.name.lower().strip("_")
        axis_names = (name, *AXIS_NAMES.get(name.replace("_", ""), ()))
        axis = next((axis for axis_name in axis_names for axis in axes if axis.lower() == axis_name), "")
        if axis:
            candidate.axis_by_parameter[size_parameter.name] = axis
    if (
        isinstance(problem, TorchOperator)
        and len(size_parameters) == 1 < len(axes)
        and size_parameters[0].name.lower() in COUNT_NAMES
    ):
        output_size = f"{next(iter(problem.outputs))}_size"
        candidate.axis_by_parameter = {size_parameters[0].name: output_size}
        candidate.guess(size_parameters[0].name, output_size, "it is the only size, and its name is that of a count")
    elif len(axes) == 1 and len(size_parameters) > 1 and "y" in summary.body_names:
        candidate.axis_by_parameter = {}  # They are rows and columns; buffers give their product.
    elif len(axes) == 1 and size_parameters and not candidate.axis_by_parameter:
        counts = [p for p in size_parameters if p.name.lower() in COUNT_NAMES] or (
            size_parameters if len(size_parameters) == 1 else []
        )
        candidate.axis_by_parameter = {p.name: axes[0] for p in counts}
    elif (
        len(tensor_axis_names) > 1
        and len(size_parameters) == 1
        and len(set(tensor_axis_names)) == len(axes)
        and problem.name != "softmax"
    ):
        candidate.axis_by_parameter = {size_parameters[0].name: tensor_axis_names[0]}
        candidate.equal_axes = dict.fromkeys(tensor_axis_names[1:], tensor_axis_names[0])
        candidate.guess(size_parameters[0].name, " = ".join(tensor_axis_names), "it is the only size")
    elif len(candidate.axis_by_parameter) < len(size_parameters) == len(axes):
        unmatched_axes = [axis for axis in axes if axis not in candidate.axis_by_parameter.values()]
        unmatched_parameters = [p for p in size_parameters if p.name not in candidate.axis_by_parameter]
        if len(unmatched_axes) != len(unmatched_parameters):
            candidate.axis_by_parameter = {}
            unmatched_axes, unmatched_parameters = axes, size_parameters
        axis_by_name = {p.name: axis for p, axis in zip(unmatched_parameters, unmatched_axes, strict=True)}
        candidate.axis_by_parameter |= axis_by_name
        candidate.guesses += [
            Guess(name, axis, ("by its position among the parameters",)) for name, axis in axis_by_name.items()
        ]
    elif not candidate.axis_by_parameter and len(size_parameters) == 1 and "cols" in axes:
        candidate.axis_by_parameter = {size_parameters[0].name: "cols"}
        candidate.guess(size_parameters[0].name, "cols", "it is the only size")


def _order_matmul(candidate: Match, summary: KernelSummary) -> None:
    """Distinguish the axes n and k of matmul by the output's index, as in `C[row * N + col]`.

    Kernels name these axes differently, so names do not decide. Adds a contradiction for an output in column-major
    order.
    """
    index = next(
        (
            i
            for name, indices in summary.store_indices.items()
            if candidate.tensor_by_pointer.get(name) == "out"
            for i in indices
        ),
        "",
    )
    row, name = _row_and_stride(index, candidate.axis_by_parameter)
    axis = candidate.axis_by_parameter.get(name, "")
    if axis == "m" and not candidate.equal_axes and re.search(r"col|x$|^j$", row.lower()):
        text = f"the output's columns are {name} elements apart: it is column-major, and matmul's output is row-major"
        candidate.contradict("layout", "out", text)
    elif axis and len(set(candidate.axis_by_parameter.values())) == 3:
        k_sizes = {
            _row_and_stride(i, candidate.axis_by_parameter)[1]
            for p, t in candidate.tensor_by_pointer.items()
            if t == "a"
            for i in summary.load_indices.get(p, ())
        }
        k_sizes -= {""}
        k_sizes = k_sizes if len(k_sizes) == 1 and name not in k_sizes else set()
        reason = f"the output's rows are {name} elements apart"
        if k_sizes:
            reason += f", a's {', '.join(k_sizes)}"
            _set_axes(
                candidate,
                {
                    size: ("n" if size == name else "k" if size in k_sizes else "m", reason)
                    for size in candidate.axis_by_parameter
                },
            )
        else:
            swapped = {axis: "n", "n": axis}
            _set_axes(
                candidate,
                {
                    size: (swapped.get(old_axis, old_axis), reason)
                    for size, old_axis in candidate.axis_by_parameter.items()
                },
            )
    _contradict_columns(candidate, summary, index)


def _contradict_columns(candidate: Match, summary: KernelSummary, index: str) -> None:
    """Add a contradiction for a matrix that the kernel reads in column-major order.

    `index` is the index expression of the output's stores.
    """
    factors = PRODUCT_OF_NAMES.findall(index)
    column_names = set(re.findall(r"[A-Za-z_]\w*", index)) - {*itertools.chain(*factors)}
    if len(factors) != 1 or len(column_names) != 1:
        return
    row_names = {*factors[0]} - candidate.axis_by_parameter.keys()
    for pointer, tensor in candidate.tensor_by_pointer.items():
        for load_index in summary.load_indices.get(pointer, ()):
            multiplied_names = {*itertools.chain(*PRODUCT_OF_NAMES.findall(load_index))}
            added_names = set(re.findall(r"[A-Za-z_]\w*", load_index)) - multiplied_names
            if (tensor == "b" and column_names & multiplied_names) or (
                tensor == "a" and row_names & added_names and multiplied_names
            ):
                text = (
                    f"'{pointer}' is read at index {load_index}: it is column-major, and matmul's {tensor} is row-major"
                )
                candidate.contradict("layout", tensor, text)
                break


PRODUCT_OF_NAMES = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\*([A-Za-z_]\w*)(?![\w.])")
"""A product of two names in an index expression."""


def _row_and_stride(index: str, axes: Collection[str]) -> tuple[str, str]:
    """Return the row and the size that multiplies it in an index such as `row * n + col`; two empty strings if none."""
    pairs = [pair for pair in re.findall(r"(\w+)\*(\w+)", index) if {*pair} & set(axes)]
    row, name = sorted(pairs[0], key=lambda factor: factor in axes) if pairs else ("", "")
    return row, name


def _set_axes(candidate: Match, axes: Mapping[str, tuple[str, str]]) -> None:
    """Assign each size another axis, with the reason; replace guesses that say otherwise."""
    changed = {
        name: (axis, reason) for name, (axis, reason) in axes.items() if candidate.axis_by_parameter[name] != axis
    }
    candidate.axis_by_parameter |= {name: axis for name, (axis, _) in changed.items()}
    candidate.guesses = [guess for guess in candidate.guesses if guess.subject not in changed]
    candidate.guesses += [Guess(name, axis, (reason,)) for name, (axis, reason) in changed.items()]


def _order_transpose(candidate: Match, summary: KernelSummary) -> None:
    """Distinguish the axes rows and cols of transpose: output rows are `rows` elements apart, input rows `cols`."""
    if candidate.equal_axes or sorted(candidate.axis_by_parameter.values()) != ["cols", "rows"]:
        return
    store_indices = [index for listed in summary.store_indices.values() for index in listed]
    strides = [_all_strides(index, candidate.axis_by_parameter) for index in (*store_indices, *summary.copied_indices)]
    if (
        len(strides) != 2
        or any(len(stride_names) != 1 for stride_names in strides)
        or set(store_indices) == set(summary.copied_indices)
    ):
        return  # A store at the index of the read is a copy: a wrong transpose.
    output_stride, input_stride = (stride_names.pop() for stride_names in strides)
    if output_stride == input_stride:
        text = (
            f"the rows of the input and of the output are both {output_stride} elements apart, "
            "which is a transpose only of a square matrix"
        )
        candidate.contradict("layout", "out", text)
    elif candidate.axis_by_parameter[output_stride] == "cols":
        reason = f"the output's rows are {output_stride} elements apart, the input's {input_stride}"
        _set_axes(candidate, {output_stride: ("rows", reason), input_stride: ("cols", reason)})


def _all_strides(index: str, axes: Collection[str]) -> set[str]:
    """Return the sizes by which an index is multiplied."""
    factors = re.findall(r"(?<=\*)\w+|\w+(?=\*)", index)
    return {name for name in factors if name in axes}


def _contradict_strides(candidate: Match, summary: KernelSummary) -> None:
    """Add a contradiction for padded rows, as in `row * (cols + 1) + col`."""
    for index in (*itertools.chain.from_iterable(summary.store_indices.values()), *summary.copied_indices):
        padded = re.search(r"\*\((\w+)\+\w+\)|\((\w+)\+\w+\)\*", index)
        if padded and (name := padded[1] or padded[2]) in candidate.axis_by_parameter:
            text = f"rows are longer than {name} elements (index {index}); {candidate.operator} has no padded rows"
            candidate.contradict("layout", name, text)
            return


# Contradictions ----------------------------------------------------------------------------------------------------


def _add_contradictions(
    candidate: Match, summary: KernelSummary, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Add the contradictions between a kernel's pointers and a problem's tensors: number, accesses, element types."""
    add = candidate.contradict
    pointer_by_tensor = {tensor: name for name, tensor in candidate.tensor_by_pointer.items()}
    problem, pointers = candidate.problem, summary.pointers
    unmatched = [
        p.name
        for p in pointers
        if p.name not in candidate.tensor_by_pointer and p.name not in candidate.workspace_pointers
    ]
    if unmatched or len(pointers) < 1 <= len([*inputs, *outputs]):
        pointer_count = f"the kernel has {units.count_noun(len(pointers), 'pointer')}"
        add("tensors", unmatched[0] if unmatched else "", f"{pointer_count}, {problem.name} {_tensor_list(problem)}")
    updated = {*problem.in_place.values()} if candidate.in_place == ("", "") else set()
    updated |= {candidate.in_place[1]} if candidate.in_place and candidate.in_place[1] else set()
    for tensor in (*inputs, *outputs):
        if tensor not in pointer_by_tensor and tensor not in updated and pointers and not unmatched:
            add("tensors", tensor, f"no pointer of the kernel is {problem.name}'s {tensor}")
    for name in candidate.workspace_pointers:
        if name not in summary.store_kinds or name in summary.read_before_store:
            add("tensors", name, f"'{name}' is no tensor of {problem.name}, and the kernel reads it")
    for name, tensor in candidate.tensor_by_pointer.items() if summary.body_names else ():
        is_updated = tensor in updated or bool(candidate.in_place and tensor in problem.outputs)
        candidate.contradictions += _access_contradictions(summary, problem, name, tensor, is_updated)
    dtypes = {t.name: t.dtype for t in (*problem.input_tensors(), *problem.output_tensors())}
    for name, tensor in candidate.tensor_by_pointer.items():
        c_type = summary.element_types.get(name, "")
        dtype = dtype_of(c_type).replace("u16", "")  # u16 can have the bits of an f16.
        if dtype and tensor in dtypes and dtype != dtypes[tensor]:
            add("element type", tensor, f"'{name}' is {c_type}*, and {problem.name}'s {tensor} is {dtypes[tensor]}")


def _access_contradictions(
    summary: KernelSummary, problem: Operator, pointer: str, tensor: str, is_updated: bool
) -> Iterator[Contradiction]:
    """Yield contradictions between a kernel's accesses through one pointer and the role of the tensor."""
    if tensor in problem.inputs and not is_updated and pointer in summary.store_kinds:
        text = f"the kernel overwrites its input {tensor} (parameter '{pointer}')"
        yield Contradiction("input written", tensor, f"{text}; {problem.name} must not change its inputs")
    if tensor in problem.outputs and pointer not in summary.store_kinds and pointer in summary.read_pointers:
        text = f"the kernel only reads '{pointer}', {problem.name}'s output"
        yield Contradiction("output only read", tensor, text)
    if (
        tensor in problem.outputs
        and summary.body_names
        and pointer not in {*summary.store_kinds, *summary.read_pointers}
    ):
        yield Contradiction(
            "output only read", tensor, f"opbench finds no store to '{pointer}', {problem.name}'s output"
        )
    only_added = summary.store_kinds.get(pointer) == ADDED
    if (
        tensor in problem.outputs
        and not is_updated
        and pointer in summary.store_kinds
        and pointer in summary.read_before_store
        and not only_added
    ):
        text = f"the kernel reads '{pointer}', {problem.name}'s uninitialised output, before it writes it"
        yield Contradiction("output read", tensor, text)
    variable_indices = [index for index in summary.store_indices.get(pointer, ()) if not index.isdigit()]
    if problem.outputs.get(tensor) == "1" and variable_indices:
        text = f"the kernel writes {pointer}[{variable_indices[0]}], and {problem.name}'s {tensor} has one element"
        yield Contradiction("output size", tensor, text)


def _tensor_list(problem: Operator) -> str:
    return f"has {', '.join(problem.inputs)} → {', '.join(problem.outputs)}"


def axis_defaults(problem: Operator) -> dict[str, int]:
    """Return the default size of each axis that has one, by the name of the axis."""
    return {
        f.name: f.default
        for f in dataclasses.fields(problem)
        if isinstance(f.default, int) and not isinstance(f.default, bool)
    }
