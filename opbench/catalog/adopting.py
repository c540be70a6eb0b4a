"""The header that a file would need, read from the launches of its host's part."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opbench.catalog.c_expression import Unreadable, converted, tokens_of
from opbench.catalog.operator import Operator
from opbench.catalog.scan import Declaration, declarations
from opbench.catalog.sources import closure
from opbench.catalog.tokens import Token, closing, closing_angle, split
from opbench.errors import UsageError, unknown

OPENING_LINE = "/// opbench"
ALIASES = {
    "gemm": "matmul", "sgemm": "matmul", "hgemm": "matmul", "mm": "matmul", "matrixmul": "matmul", "mmul": "matmul",
    "matrixmultiply": "matmul", "vecadd": "add", "vectoradd": "add", "addvectors": "add", "reduce": "sum",
    "reduction": "sum", "maxpool": "maxpool2d", "avgpool": "avgpool2d", "batchnorm": "batchnorm2d", "conv": "conv2d",
    "convolution": "conv2d", "memcpy": "copy",
}  # fmt: skip
"""What kernels are called of which operator."""
COUNTS = frozenset(
    [
        "n",
        "size",
        "len",
        "length",
        "num",
        "count",
        "numelements",
        "num_elements",
        "total",
        "nelem",
        "elements",
        "numel",
        "nx",
    ]
)
SIZE = re.compile(r"(?i)block|thread|tile|bdim")
OUTPUTS = frozenset(["out", "output", "dst", "dest", "result", "res", "y", "c", "ret"])


@dataclass(frozen=True)
class HostLaunch:
    """A launch `kernel<<<grid, block, shared>>>(arguments)` with what its function and file define before it."""

    kernel: str
    template: str
    """Its template arguments as written, with their brackets; empty without."""
    line: int
    configuration: tuple[tuple[Token, ...], ...]
    arguments: tuple[tuple[Token, ...], ...]
    known: Mapping[str, Sequence[Token]]
    sizes: tuple[str, ...]
    """Whole numbers that its function is given and that are called as sizes of blocks are: what one tunes."""


@dataclass
class Proposal:
    """A header, and what of it is guessed or could not be read."""

    operator: str
    kernel: str
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The header as it goes on top of the file."""
        return "\n".join(f"// {line}".rstrip() for line in ("/// opbench", *self.lines, "///")) + "\n"


def propose(path: Path, operators: Mapping[str, type[Operator]], operator: str = "", kernel: str = "") -> Proposal:
    """The header of a file; raises UsageError where no launch or no operator can be told."""
    try:
        sources = closure(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if any(OPENING_LINE in line for line in sources[0].text.splitlines()):
        raise UsageError(f"{path}: has an opbench header already; check it with: opbench check {path}")
    everything = [one for source in sources for one in declarations(source.text)]
    kernels = {one.name: one for one in everything if one.is_kernel}
    if not kernels:
        raise UsageError(f"{path}: defines no __global__ function that can be read; write its header by hand")
    launches = _launches(everything, sources[0].text)
    chosen, others = _chosen(path, kernels, launches, kernel)
    proposal = Proposal(operator or _operator_of(path, chosen, operators), chosen)
    if proposal.operator not in operators:
        raise UsageError(unknown("operator", proposal.operator, operators, "opbench list operators"))
    launch = next((one for one in launches if one.kernel == chosen), None)
    problem = operators[proposal.operator].examples()[0]
    _write(proposal, kernels[chosen], launch, problem)
    if launch and not any(axis in proposal.text.split("args")[0].split("grid")[-1] for axis in problem.axes):
        proposal.notes.append(
            "the grid names no axis, so that every size gets the same: write an expression of the axes"
        )
    if others:
        proposal.notes.append(f"the file has other kernels, too: {', '.join(others)}; --kernel NAME takes one of them")
    return proposal


def _chosen(
    path: Path, kernels: Mapping[str, Declaration], launches: Sequence[HostLaunch], wanted: str
) -> tuple[str, list[str]]:
    """The kernel that is meant, and the others."""
    if wanted and wanted not in kernels:
        raise UsageError(f"{path}: {unknown('kernel', wanted, kernels)}")
    launched = [name for name in dict.fromkeys(one.kernel for one in launches) if name in kernels]
    chosen = wanted or next(iter(launched or kernels))
    return chosen, [name for name in kernels if name != chosen]


def _operator_of(path: Path, kernel: str, operators: Mapping[str, type[Operator]]) -> str:
    """The operator that a kernel's name, or the file's, speaks of."""
    for name in (kernel, path.stem):
        parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]
        joined = ["".join(parts[i:j]) for i in range(len(parts)) for j in range(len(parts), i, -1)]
        snake = ["_".join(parts[i:j]) for i in range(len(parts)) for j in range(len(parts), i, -1)]
        for word in sorted({*joined, *snake}, key=len, reverse=True):
            if (found := ALIASES.get(word, word)) in operators:
                return found
    known = ", ".join(sorted(operators))
    raise UsageError(
        f"{path}: no operator is named like kernel '{kernel}'; say which it computes: "
        f"opbench adopt {path} --operator NAME ({known})"
    )


# Launches -------------------------------------------------------------------------------------------------------------


def _launches(everything: Sequence[Declaration], text: str) -> list[HostLaunch]:
    """Every launch of a file, in order."""
    defined: dict[str, Sequence[Token]] = {}
    for one in everything:
        if one.kind == "directive":
            match = re.match(r"#\s*define\s+(\w+)[ \t]+(?!\()(.+)", one.tokens[0].text)
            if match:
                defined[match[1]] = tokens_of(re.sub(r"\\\n", " ", match[2].split("//")[0]))
        elif one.kind == "other" and not one.is_device:
            defined |= _definitions(one.tokens)
    found = []
    for one in everything:
        if one.kind != "function" or one.is_device:
            continue
        for index, token in enumerate(one.tokens):
            if token.text == "<<<" and (launch := _launch(one, index, defined, text)):
                found.append(launch)
    return found


def _launch(one: Declaration, index: int, defined: Mapping[str, Sequence[Token]], text: str) -> HostLaunch | None:
    code = one.tokens
    ends = next((i for i in range(index, len(code)) if code[i].text == ">>>"), -1)
    if ends < 0 or code[ends + 1].text != "(":
        return None
    at, template = index - 1, ""
    if code[at].text == ">":
        opened = next((i for i in range(at, -1, -1) if code[i].text == "<" and closing_angle(code, i) == at), -1)
        if opened < 1:
            return None
        template = text[code[opened].start : code[at].end] if code[at].end <= len(text) else ""
        at = opened - 1
    closed = closing(code, ends + 1)
    return HostLaunch(
        code[at].text,
        " ".join(template.split()),
        one.line,
        tuple(split(code[index + 1 : ends], ",")),
        tuple(split(code[ends + 2 : closed], ",")),
        {**defined, **_definitions(code[one.body : index])},
        tuple(p.name for p in map(_parameter, one.parameters()) if not p.is_pointer and SIZE.search(p.name)),
    )


def _definitions(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Variables with their last values: `name = value;` and `dim3 name(x, y);`."""
    found: dict[str, Sequence[Token]] = {}
    for index in range(1, len(code) - 1):
        token, after = code[index], code[index + 1]
        if token.kind != "name":
            continue
        if after.text == "=" and code[index + 2 : index + 3] and code[index + 2].text != "=":
            value = _until(code, index + 2)
            found[token.text] = value
        elif after.text in ("(", "{"):  # the first of a declaration or a later one: dim3 block(256), grid(blocks);
            before = (code[i] for i in range(index - 1, -1, -1) if code[i].text in ("dim3", "=", ";", "{", "}"))
            if (kind := next(before, token)).text == "dim3":
                found[token.text] = [kind, *code[index + 1 : closing(code, index + 1) + 1]]
    return found


def _until(code: Sequence[Token], start: int) -> Sequence[Token]:
    """The tokens up to the comma or semicolon that ends a value."""
    index = start
    while index < len(code) and code[index].text not in (",", ";"):
        index = closing(code, index) + 1 if code[index].kind == "mark" and code[index].text in "([{" else index + 1
    return code[start:index]


# The header -----------------------------------------------------------------------------------------------------------


def _write(proposal: Proposal, kernel: Declaration, launch: HostLaunch | None, problem: Operator) -> None:
    """Fill in a proposal's lines."""
    parameters = [_parameter(tokens) for tokens in kernel.parameters()]
    given = list(launch.arguments) if launch else []
    names, in_place, axes = _matched(proposal, parameters, problem)
    known: dict[str, Sequence[Token] | str] = dict(launch.known) if launch else {}
    for parameter, argument in zip(parameters, given, strict=False):
        axis = axes.get(parameter.name)
        if axis and len(argument) == 1:
            known[argument[0].text] = axis
    tuned = {name: name.upper() for name in (launch.sizes if launch else ()) if name not in known}
    known |= tuned
    args = [_argument(proposal, p, names, axes, g, known) for p, g in _longest(parameters, given)]
    called = kernel.qualified + (launch.template if launch else "")
    if kernel.is_template and "<" not in called:
        called += f"<{', '.join('float' for _ in range(_type_parameters(kernel)))}>"
        proposal.notes.append(f"the template's arguments are guessed: {called}")
    grid, block, shared = _geometry(proposal, launch, known)
    entry = [f'kernel = "{called}"', f"grid = {grid}", f"block = {block}"]
    entry += [f'shared = "{shared}"'] if shared not in ("", "0") else []
    entry += [f"args = [{', '.join(args)}]"]
    proposal.lines = [f'operator = "{proposal.operator}"', f'title = "{kernel.name}"']
    if in_place:
        proposal.lines.append(f'in_place = {{ {in_place[0]} = "{in_place[1]}" }}')
    sides = 2 if len(_listed(block)) > 1 else 1
    used = {name: macro for name, macro in tuned.items() if any(macro in part for part in (grid, block, shared))}
    if used:
        values = "[16, 32, 8]" if sides > 1 else "[256, 128, 512]"
        proposal.lines.append(f"tune = {{ {', '.join(f'{macro} = {values}' for macro in used.values())} }}")
    proposal.lines.append(f"launch = [{{ {', '.join(entry)} }}]")


def _listed(text: str) -> list[str]:
    """The items of a list of expressions as the header has it."""
    return re.findall(r'"([^"]*)"', text)


@dataclass(frozen=True)
class Parameter:
    """One of a kernel's."""

    name: str
    type: str
    is_pointer: bool
    is_const: bool


def _parameter(found: Sequence[Token]) -> Parameter:
    words = [token.text for token in found]
    words = words[: words.index("=")] if "=" in words else words
    name = next((word for word in reversed(words) if re.fullmatch(r"[A-Za-z_]\w*", word)), "")
    pointer = "*" in words or "[" in words
    star = words.index("*") if "*" in words else len(words)
    return Parameter(name, " ".join(words[:-1]), pointer, "const" in words[:star])


def _type_parameters(kernel: Declaration) -> int:
    ends = closing_angle(kernel.tokens, 1)
    return sum(token.text in ("typename", "class") for token in kernel.tokens[2:ends])


def _longest(
    parameters: Sequence[Parameter], given: Sequence[tuple[Token, ...]]
) -> list[tuple[Parameter, tuple[Token, ...]]]:
    return [(p, given[i] if i < len(given) else ()) for i, p in enumerate(parameters)]


def _matched(
    proposal: Proposal, parameters: Sequence[Parameter], problem: Operator
) -> tuple[dict[str, str], tuple[str, str] | None, dict[str, str]]:
    """Pointers' tensors, the output that begins as an input, and whole numbers' axes, each by the parameter's name."""
    inputs, outputs = list(problem.inputs), list(problem.outputs)
    pointers = [p for p in parameters if p.is_pointer]
    names: dict[str, str] = {}
    in_place: tuple[str, str] | None = None
    if len(pointers) == len(outputs) and len(inputs) == len(outputs) == 1:
        names, in_place = {pointers[0].name: outputs[0]}, (outputs[0], inputs[0])
    else:
        written = [p for p in pointers if not p.is_const]
        if len(written) != len(outputs):
            named = [p for p in pointers if p.name.lower().lstrip("hd_") in OUTPUTS or p.name.lower() in outputs]
            written = named if len(named) == len(outputs) else pointers[len(pointers) - len(outputs) :]
            proposal.notes.append(f"which pointer is written is guessed: {', '.join(p.name for p in written)}")
        read = [p for p in pointers if p not in written]
        names = {p.name: name for p, name in zip(written, outputs, strict=False)}
        same = {p.name: name for p in read for name in inputs if p.name.lower().lstrip("d_") == name}
        if len(same) != len(read):
            same = {p.name: name for p, name in zip(read, inputs, strict=False)}
        names |= same
    numbers = [p for p in parameters if not p.is_pointer and not re.search(r"\b(float|double|bool|half)\b", p.type)]
    axes = [name for name, value in problem.axes.items() if isinstance(value, int)]
    found = {p.name: axis for p in numbers for axis in axes if p.name.lower().lstrip("_") == axis}
    if len(axes) == 1 and not found:
        found = {p.name: axes[0] for p in numbers if p.name.lower() in COUNTS} or {p.name: axes[0] for p in numbers[:1]}
    elif len(found) < len(numbers) == len(axes):
        found = {p.name: axis for p, axis in zip(numbers, axes, strict=True)}
        proposal.notes.append(
            f"which number is which axis is guessed: {', '.join(f'{k} is {v}' for k, v in found.items())}"
        )
    return names, in_place, found


def _argument(
    proposal: Proposal,
    parameter: Parameter,
    names: Mapping[str, str],
    axes: Mapping[str, str],
    given: tuple[Token, ...],
    known: Mapping[str, Sequence[Token] | str],
) -> str:
    """One argument as the header has it."""
    if parameter.is_pointer:
        if parameter.name in names:
            return f'"{names[parameter.name]}"'
        proposal.notes.append(f"no tensor is found for pointer '{parameter.name}': name one, or a workspace")
        return f'"{parameter.name}"'
    if parameter.name in axes:
        return f'"{axes[parameter.name]}"'
    words = [token.text for token in given]
    if words in (["true"], ["false"]):
        return words[0]
    if re.search(r"\b(float|double)\b", parameter.type):
        kind = "f64" if "double" in parameter.type else "f32"
        value = _float(given, known)
        if value is None:
            value = 0.0 if parameter.name.lower() == "beta" else 1.0
            proposal.notes.append(f"'{parameter.name}' is guessed to be {value}")
        return str(value) if kind == "f32" else f"{{ f64 = {value} }}"
    try:
        return f'"{_plain(converted(given, known))}"'
    except Unreadable as error:
        proposal.notes.append(f"what '{parameter.name}' is cannot be read ({error}): write an expression of the axes")
        return f'"{parameter.name}"'


def _float(given: Sequence[Token], known: Mapping[str, Sequence[Token] | str]) -> float | None:
    """The number that an argument is, directly or by a variable's value."""
    text = "".join(token.text for token in given).rstrip("fF")
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", text):
        return float(text)
    value = known.get(text)
    return None if value is None or isinstance(value, str) or len(value) > 2 else _float(value, {})


def _geometry(
    proposal: Proposal, launch: HostLaunch | None, known: Mapping[str, Sequence[Token] | str]
) -> tuple[str, str, str]:
    """Grid, block and shared bytes as the header has them."""
    if launch is None:
        proposal.notes.append("no launch <<<grid, block>>> of it can be read: grid and block are to be written")
        return '["1"]', '["256"]', ""
    sides = [
        _sides(proposal, what, given, known)
        for what, given in zip(("grid", "block"), launch.configuration, strict=False)
    ]
    shared = ""
    if len(launch.configuration) > 2:
        try:
            shared = _plain(converted(launch.configuration[2], known))
        except Unreadable as error:
            proposal.notes.append(f"shared bytes cannot be read ({error})")
    return sides[0], sides[1], shared


def _sides(proposal: Proposal, what: str, given: Sequence[Token], known: Mapping[str, Sequence[Token] | str]) -> str:
    """A list of one to three expressions."""
    for _ in range(4):  # a name may stand for another
        if len(given) == 1 and isinstance(value := known.get(given[0].text), Sequence) and not isinstance(value, str):
            given = value
    parts: Sequence[Sequence[Token]] = [given]
    if given and given[0].text == "dim3" and len(given) > 1:
        parts = split(given[2:-1], ",")
    elif given and given[0].text == "{":
        parts = split(given[1:-1], ",")
    found = []
    for part in parts:
        try:
            found.append(_plain(converted(part, known)))
        except Unreadable as error:
            written = "".join(token.text for token in part)
            proposal.notes.append(f"{what} '{written}' cannot be read ({error}): write an expression of the axes")
            found.append("1")
    return "[" + ", ".join(f'"{text}"' for text in found) + "]"


def _plain(text: str) -> str:
    """A quotient that is rounded up, by its name."""
    for pattern in (r"\(\((.+?)\) \+ (\d+)\) // (\d+)", r"\((.+?) \+ (\d+)\) // (\d+)"):
        match = re.fullmatch(pattern, text)
        if match and int(match[2]) == int(match[3]) - 1:
            return f"cdiv({match[1]}, {match[3]})"
    match = re.fullmatch(r"\(\((.+?) \+ (\w+)\) - 1\) // (\w+)", text)
    return f"cdiv({match[1]}, {match[2]})" if match and match[2] == match[3] else text
