"""Write a FlashInfer-Bench definition as a PyTorch task: its reference, get_inputs() and get_outputs()."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opbench.errors import UsageError
from opbench.paths import next_command

EXAMPLE_SIZE = 128
"""The size of an axis to which a definition gives no value."""
TOTAL_SIZE = 2048
"""The size of an axis that contains segments or is indexed: the last offset, or the number of valid indices."""
FLOAT_TYPES = ("float32", "float16", "bfloat16", "float64")
INDEX_TYPES = ("int32", "int64")
RANDOM_FUNCTIONS = ("multinomial", "bernoulli", "normal", "rand", "randn", "randint", "randperm", "rand_like")
LAST_PAGE_LENGTH, PAGE_SIZE = "last_page_len", "page_size"
"""FlashInfer's names for the number of tokens in a sequence's last page, 1 ... page_size, and for its limit."""
FIRST_PROBE_SIZE = 11
AXIS_EXPRESSIONS = (ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
COMPARISONS = (ast.Eq, ast.LtE, ast.GtE, ast.Lt, ast.Gt)

HELPERS = '''
def _offsets(total, count):
    """Return `count` offsets from 0 to `total` that never fall; a segment may be empty."""
    inner = _torch.randint(0, total + 1, (count - 2,)).sort().values
    return _torch.cat([_torch.zeros(1, dtype=_torch.int64), inner, _torch.full((1,), total)])


def _indices(shape, limit, padded, distinct):
    """Return indices from 0 to `limit` - 1; an eighth of them is -1 if `padded`."""
    if distinct:
        indices = _torch.randperm(limit)[: shape[0]]
    else:
        indices = _torch.randint(0, limit, shape)
        indices.view(-1)[0] = limit - 1
    return _torch.where(_torch.rand(shape) < 0.125, -1, indices) if padded else indices
'''
"""Functions of a task's file that make integer inputs."""


@dataclass(frozen=True)
class Axis:
    """An axis in a FlashInfer-Bench definition."""

    type: Literal["const", "var"]
    value: int | None = None


@dataclass(frozen=True)
class DefinedTensor:
    """An input or output of a definition; its shape is None for a single number."""

    shape: tuple[str, ...] | None
    dtype: str
    description: str | None = None


@dataclass(frozen=True)
class Definition:
    """A FlashInfer-Bench definition."""

    name: str
    axes: dict[str, Axis]
    inputs: dict[str, DefinedTensor]
    reference: str
    outputs: dict[str, DefinedTensor] = field(default_factory=dict)
    constraints: tuple[str, ...] | None = None
    op_type: str = ""


@dataclass(frozen=True)
class IndexLimit:
    """The values of an index input that a reference accepts: 0 ... limit - 1, and -1 if `padded`."""

    limit: int | None
    """None if the reference accepts any number, or if none of the limits tried is right."""
    padded: bool = False


FindLimits = Callable[[str, Mapping[str, Sequence[int]]], Mapping[str, IndexLimit]]
"""Run the reference in a task's text, and return the limit of each index input among the given candidates."""


def task_text(definition: Definition, find_limits: FindLimits) -> str:
    """Return the text of a Python file with the definition's reference and a get_inputs().

    Raises UsageError for inputs that cannot be generated, and for a reference that draws random numbers.
    """
    _require_no_random_numbers(definition)
    integers = _integer_inputs(definition)
    if not integers:
        sizes = {name: axis.value or EXAMPLE_SIZE for name, axis in definition.axes.items()}
        return _text(definition, sizes, {}, {}, [])
    return _IntegerTask(definition, integers).text(find_limits)


def _require_no_random_numbers(definition: Definition) -> None:
    try:
        nodes = list(ast.walk(ast.parse(definition.reference)))
    except SyntaxError:
        return  # The process that runs the reference reports the line of a syntax error.
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    called = sorted({call.attr for call in calls if isinstance(call, ast.Attribute)} & set(RANDOM_FUNCTIONS))
    if called:
        remedy = "make the random numbers an input"
        if definition.op_type == "sampling":
            remedy = f"the operator 'sampling' has them as an input: {next_command('list', 'sampling')}"
        raise UsageError(
            f"the reference draws random numbers with {', '.join(called)}, so no result is the correct one; a "
            f"reference must be deterministic; {remedy}",
            kind="random",
            subject=definition.name,
            value=called,
            allowed="a deterministic reference",
        )


def _integer_inputs(definition: Definition) -> list[str]:
    """Return the names of the integer tensors; raise UsageError for an input of another type."""
    for name, tensor in definition.inputs.items():
        allowed = FLOAT_TYPES if tensor.shape is None else (*FLOAT_TYPES, *INDEX_TYPES)
        if tensor.dtype not in allowed:
            what = "is a single number" if tensor.shape is None else "has elements"
            raise UsageError(
                f"input '{name}' {what} of the type {tensor.dtype}, whose values the definition does not limit; "
                f"imported are {', '.join(allowed)}; write a PyTorch task with get_inputs() instead",
                kind="not-allowed",
                subject=name,
                value=tensor.dtype,
                allowed=allowed,
            )
    return [n for n, t in definition.inputs.items() if t.shape is not None and t.dtype in INDEX_TYPES]


class _IntegerTask:
    """The task of a definition with integer inputs, such as offsets, page tables and positions."""

    def __init__(self, definition: Definition, integers: Sequence[str]) -> None:
        self.definition, self.integers = definition, integers
        self.totals: dict[str, str] = {}
        """The axis at whose length the offsets in an input end."""
        self.derived: dict[str, str] = {}
        """Axes that a constraint gives as an expression of others."""
        self.checks: list[str] = []
        """Conditions of the axes."""
        for constraint in definition.constraints or ():
            self._read_constraint(constraint)
        self.lengths = [name for name in integers if name.endswith(LAST_PAGE_LENGTH) and PAGE_SIZE in definition.axes]
        self.indices = [name for name in integers if name not in self.totals and name not in self.lengths]

    def _read_constraint(self, constraint: str) -> None:
        tree = _parsed(constraint)
        compared = tree if isinstance(tree, ast.Compare) and len(tree.ops) == 1 else None
        if compared is not None and isinstance(compared.ops[0], ast.Eq):
            sides = (compared.left, compared.comparators[0])
            for axis, other in (sides, sides[::-1]):
                if not isinstance(axis, ast.Name) or axis.id not in self.definition.axes:
                    continue
                if (name := self._last_element(other)) is not None:
                    self.totals[name] = axis.id
                    return
                if self._names_only_axes(other) and self.definition.axes[axis.id].type == "var":
                    self.derived[axis.id] = f"({ast.unparse(other)})"
                    return
        if compared is not None and isinstance(compared.ops[0], COMPARISONS) and self._names_only_axes(compared):
            self.checks.append(ast.unparse(compared))
            return
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree else set()
        of_shapes = tree is not None and any(isinstance(n, ast.Attribute) and n.attr == "shape" for n in ast.walk(tree))
        if names & set(self.integers) and not of_shapes:
            raise UsageError(
                f"constraint '{constraint}' limits the values of {', '.join(sorted(names & set(self.integers)))} in a "
                "way that opbench does not read; it reads AXIS == INPUT[-1].item(); write a PyTorch task with "
                "get_inputs() instead",
                kind="not-allowed",
                subject=self.definition.name,
                value=constraint,
                allowed="AXIS == INPUT[-1].item()",
            )

    def _last_element(self, node: ast.expr) -> str | None:
        """Return the integer input of an expression such as `kv_indptr[-1].item()`; None for others."""
        text = ast.unparse(node).removesuffix(".item()")
        name = text.removesuffix("[-1]")
        one_axis = name in self.integers and len(self.definition.inputs[name].shape or ()) == 1
        return name if one_axis and text != name else None

    def _names_only_axes(self, node: ast.expr) -> bool:
        allowed = (*AXIS_EXPRESSIONS, ast.Compare, *COMPARISONS)
        return all(
            isinstance(part, allowed) and (not isinstance(part, ast.Name) or part.id in self.definition.axes)
            for part in ast.walk(node)
        )

    def text(self, find_limits: FindLimits) -> str:
        """Return the text of the task's file; raise UsageError for an input whose limit cannot be derived."""
        sizes = self._probe_sizes()
        candidates = self._candidates(sizes)
        zeros = {name: f"_torch.zeros({self._shape(name)}, dtype=_torch.int64)" for name in self.indices}
        limits: Mapping[str, IndexLimit] = {}
        if self.indices:
            limits = find_limits(self._text_of(sizes, zeros), dict.fromkeys(self.indices, sorted(candidates)))
        expressions, targets = {}, set[str]()
        for name in self.indices:
            index_limit = limits[name]
            if index_limit.limit is None:
                raise UsageError(
                    f"input '{name}' ({self.definition.inputs[name].dtype}): opbench cannot find the largest valid "
                    "value, because the reference accepts values beyond the size of every axis; allowed are indices "
                    "that the reference checks against an axis, and offsets with a constraint "
                    "AXIS == INPUT[-1].item(); for other inputs write a PyTorch task with get_inputs()",
                    kind="not-allowed",
                    subject=name,
                    value=self.definition.inputs[name].dtype,
                    allowed=("offsets", "indices"),
                )
            axes = candidates[index_limit.limit]
            targets |= set(axes)
            expressions[name] = (
                f"_indices({self._shape(name)}, {' * '.join(self._size(axis) for axis in axes)}, {index_limit.padded}, "
                f"{self._is_distinct(name, axes)})"
            )
        return self._text_of(self._file_sizes(targets), expressions)

    def _size(self, axis: str) -> str:
        return self.derived.get(axis, axis)

    def _shape(self, name: str) -> str:
        return _shape_text(self.definition.inputs[name], self.derived)

    def _is_distinct(self, name: str, axes: Sequence[str]) -> bool:
        """Return whether a constraint such as `slots >= batch` implies that each index occurs once."""
        shape = self.definition.inputs[name].shape or ()
        return len(axes) == len(shape) == 1 and f"{axes[0]} >= {shape[0]}" in self.checks

    def _open_axes(self) -> list[str]:
        """Return the axes without a value; axes whose size is the last offset of an input come last."""
        totals = list(self.totals.values())
        names = [n for n, axis in self.definition.axes.items() if axis.value is None and n not in self.derived]
        return sorted(names, key=lambda name: totals.index(name) if name in totals else -1)

    def _probe_sizes(self) -> dict[str, int]:
        """Return a different prime for each open axis, so that a limit names its axis."""
        sizes = {name: axis.value for name, axis in self.definition.axes.items() if axis.value is not None}
        primes = _primes(FIRST_PROBE_SIZE)
        for name in self._open_axes():
            sizes[name] = next(prime for prime in primes if prime not in sizes.values())
        return sizes

    def _file_sizes(self, targets: set[str]) -> dict[str, int]:
        """Return the sizes in the task's file."""
        sizes = {name: axis.value for name, axis in self.definition.axes.items() if axis.value is not None}
        totals = list(dict.fromkeys(self.totals.values()))
        for name in self._open_axes():
            if name in totals:
                sizes[name] = TOTAL_SIZE * (1 + totals.index(name))
            else:
                sizes[name] = TOTAL_SIZE if name in targets else EXAMPLE_SIZE
        return sizes

    def _candidates(self, sizes: Mapping[str, int]) -> dict[int, tuple[str, ...]]:
        """Return the sizes that may limit an index, with their axes: one axis, or neighbours of a float input."""
        candidates: dict[int, tuple[str, ...]] = {}
        for name, tensor in self.definition.inputs.items():
            shape = [] if name in self.integers else [axis for axis in tensor.shape or () if axis in sizes]
            for length in range(1, len(shape) + 1):
                for start in range(len(shape) - length + 1):
                    axes = tuple(shape[start : start + length])
                    candidates.setdefault(math.prod(sizes[axis] for axis in axes), axes)
        return candidates

    def _text_of(self, sizes: Mapping[str, int], indices: Mapping[str, str]) -> str:
        expressions = dict(indices) | {
            name: f"_torch.randint(1, {PAGE_SIZE} + 1, {self._shape(name)})" for name in self.lengths
        }
        first: dict[str, str] = {}
        checks = list(self.checks)
        for name in (n for n in self.definition.inputs if n in self.totals):
            count = self._size((self.definition.inputs[name].shape or ("",))[0])
            total = self._size(self.totals[name])
            if (before := first.get(count)) is None:
                first[count] = name
                expressions[name] = f"_offsets({total}, {count})"
                checks.append(f"{count} >= 2")
            else:
                # The queries of a sequence are its last tokens, so that a sequence has no fewer keys than queries.
                limit = self._size(self.totals[before])
                expressions[name] = f"{before} + _offsets({total} - {limit}, {count})"
                checks.append(f"{total} >= {limit}")
        constants = {n: axis.value for n, axis in self.definition.axes.items() if axis.type == "const"}
        checks += [f"{name} == {value}" for name, value in constants.items()]
        return _text(self.definition, sizes, self.derived, expressions, checks)


def _text(
    definition: Definition,
    sizes: Mapping[str, int],
    derived: Mapping[str, str],
    integers: Mapping[str, str],
    checks: Sequence[str],
) -> str:
    """Return the text of a task's file; `integers` has an expression for each integer input."""
    lines = [definition.reference.rstrip(), "", "import torch as _torch", ""]
    lines += [f"{name} = {size}" for name, size in sizes.items()]
    if integers:
        # Numbers within get_inputs() are sizes that may change, so the conditions have a function of their own.
        lines += ["", HELPERS, "", "def _check_sizes():", *(f"    assert {check}" for check in checks)]
    lines += ["", "", "def get_inputs():"]
    if integers:
        lines.append("    _check_sizes()")
        ordered = sorted(integers, key=list(definition.inputs).index)
        lines += [f"    {name} = {integers[name]}" for name in ordered]
    lines.append("    return [")
    for name, tensor in definition.inputs.items():
        if tensor.shape is None:
            lines.append(f"        {_single_number(definition, tensor)!r},")
        elif name in integers:
            lines.append(f"        {name}.to(_torch.{tensor.dtype}),")
        else:
            lines.append(f"        _torch.randn({_shape_text(tensor, derived)}, dtype=_torch.{tensor.dtype}),")
    lines.append("    ]")
    if integers:
        lines += ["", "", "def get_outputs():", "    return ["]
        for tensor in definition.outputs.values():
            lines.append(f"        _torch.empty({_shape_text(tensor, derived)}, dtype=_torch.{tensor.dtype}),")
        lines.append("    ]")
    return "\n".join([*lines, ""])


def _shape_text(tensor: DefinedTensor, derived: Mapping[str, str]) -> str:
    sizes = [derived.get(axis, axis) for axis in tensor.shape or ()]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def _single_number(definition: Definition, tensor: DefinedTensor) -> float:
    """Return the value of a single number: 1 / sqrt(...) if its description gives it, else 1."""
    sizes = {name: axis.value for name, axis in definition.axes.items() if axis.value}
    for text in re.findall(r"1\s*/\s*sqrt\(([^()]*)\)", tensor.description or ""):
        tree = _parsed(text)
        parts = list(ast.walk(tree)) if tree is not None else [ast.Pass()]
        if all(isinstance(part, AXIS_EXPRESSIONS) and getattr(part, "id", "") in ("", *sizes) for part in parts):
            value = eval(text, {"__builtins__": {}}, dict(sizes))
            if isinstance(value, int) and value > 0:
                return 1 / math.sqrt(value)
    return 1.0


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None


def _primes(first: int) -> Iterator[int]:
    return (n for n in itertools.count(first) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
