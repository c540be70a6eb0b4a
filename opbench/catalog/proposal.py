"""The header that a kernel would need, written from its parameters and a launch of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from opbench.catalog.c_expression import Unreadable, converted, tokens_of
from opbench.catalog.host_launches import HostLaunch, Parameter, parameter_of
from opbench.catalog.host_structs import GivenParameter, grouped, typed
from opbench.catalog.host_textures import HostTexture
from opbench.catalog.operator import Operator
from opbench.catalog.scan import Declaration
from opbench.catalog.stores import ADDED, stores
from opbench.catalog.tokens import Token, closing_angle, split

NO_NUMBER = r"\b(float|double|bool|half)\b"
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
AXES = {
    "width": ("w", "cols"), "height": ("h", "rows"), "ncols": ("cols",), "columns": ("cols",), "nrows": ("rows",),
}  # fmt: skip
"""What parameters are called of which axis, where the problem has it."""
UNTOLD = frozenset(("scalar_t",))
"""Types that PyTorch's AT_DISPATCH macros declare about a launch."""
OUTPUTS = frozenset(["out", "output", "dst", "dest", "result", "res", "y", "c", "ret"])


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


def write_header(
    proposal: Proposal,
    kernel: Declaration,
    launch: HostLaunch | None,
    problem: Operator,
    textures: Mapping[str, HostTexture],
    structs: Mapping[str, list[Parameter] | str],
    functions: Mapping[str, Declaration],
) -> None:
    """Fill in a proposal's lines."""
    types = _types(kernel, launch)
    named = types | dict(launch.known if launch else {})
    groups = grouped([_by_its_type(parameter_of(tokens), named) for tokens in kernel.parameters()], launch, structs)
    pairs = [pair for group in groups for pair in group.fields]
    parameters = [parameter for parameter, _ in pairs]
    pointers = [p.name for p in parameters if p.is_pointer and not p.is_const]
    stored = stores(kernel, pointers, functions)
    names, in_place, axes = _matched(proposal, parameters, problem, stored)
    known: dict[str, Sequence[Token] | str] = dict(launch.known) if launch else {}
    for parameter, argument in pairs:
        axis = axes.get(parameter.name)
        if axis and len(argument) == 1:
            known[argument[0].text] = axis
    for group, argument in zip(groups, launch.arguments if launch else (), strict=False):
        if group.is_struct and len(argument) == 1:  # fields of what a function gets, as its own code names them
            known |= {f"{argument[0].text}.{p.name}": axes[p.name] for p, _ in group.fields if p.name in axes}
    tuned = {name: name.upper() for name in (launch.sizes if launch else ()) if name not in known}
    known |= tuned
    args = [_group(proposal, group, names, axes, known) for group in groups]
    given = _template(launch.template, known) if launch else ""
    untold = (UNTOLD | types.keys()) - known.keys()
    told = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: "float" if word[0] in untold else word[0], given)
    called = kernel.qualified + told
    if kernel.is_template and (not given or told != given):
        called += "" if given else f"<{', '.join('float' for _ in types)}>"
        proposal.notes.append(f"the template's arguments are guessed: {called}")
    for name, words in ((p.name, p.type.split()) for p in parameters if p.is_pointer):
        if pointed := next((word for word in words if word in structs), ""):
            proposal.notes.append(
                f"'{name}' is a pointer to structure '{pointed}', which no header fills: take it by value"
            )
    grid, block, shared = _geometry(proposal, launch, known)
    entry = [f'kernel = "{called}"', f"grid = {grid}", f"block = {block}"]
    entry += [f'shared = "{shared}"'] if shared not in ("", "0") else []
    entry += [f"args = [{', '.join(args)}]"]
    entry += ["cooperative = true"] if launch and launch.cooperative else []
    proposal.lines = [f'operator = "{proposal.operator}"', f'title = "{kernel.name}"']
    if in_place:
        proposal.lines.append(f'in_place = {{ {in_place[0]} = "{in_place[1]}" }}' if in_place[0] else "in_place = true")
    sides = 2 if len(_listed(block)) > 1 else 1
    used = {name: macro for name, macro in tuned.items() if any(macro in part for part in (grid, block, shared))}
    if used:
        values = "[16, 32, 8]" if sides > 1 else "[256, 128, 512]"
        proposal.lines.append(f"tune = {{ {', '.join(f'{macro} = {values}' for macro in used.values())} }}")
    proposal.lines += _textures(proposal, pairs, names, problem, textures, known)
    updates = in_place or problem.in_place
    if not updates and (added := [names[name] for name, how in stored.items() if how == ADDED and name in names]):
        proposal.notes.append(f"it adds to {', '.join(added)}, which is zeroed before")
        steps = [*(f'{{ zero = "{name}" }}' for name in added), f"{{ {', '.join(entry)} }}"]
        proposal.lines += ["launch = [", *(f"  {step}," for step in steps), "]"]
    else:
        proposal.lines.append(f"launch = [{{ {', '.join(entry)} }}]")


def _by_its_type(parameter: Parameter, known: Mapping[str, Sequence[Token]]) -> Parameter:
    """The same with the type that a name of the file's own stands for."""
    found = known.get(parameter.type.split()[-1], ()) if parameter.type else ()
    if not found or any(token.kind != "name" for token in found):
        return parameter
    return replace(parameter, type=" ".join(token.text for token in found))


def _template(given: str, known: Mapping[str, Sequence[Token] | str]) -> str:
    """Template arguments as written, with what the host calls its numbers by its own names as numbers."""
    parts = []
    known = {name: value for name, value in known.items() if not isinstance(value, str)}  # an axis is no constant
    for part in split(tokens_of(given)[1:-1], ","):
        text = given[part[0].start : part[-1].end]
        if any(token.text in known for token in part):
            with contextlib.suppress(Unreadable):
                text = converted(part, known).replace("//", "/")
        parts.append(text)
    return f"<{', '.join(parts)}>" if given else ""


def _textures(
    proposal: Proposal,
    pairs: Sequence[tuple[Parameter, tuple[Token, ...]]],
    names: Mapping[str, str],
    problem: Operator,
    textures: Mapping[str, HostTexture],
    known: Mapping[str, Sequence[Token] | str],
) -> list[str]:
    """How the kernel's textures and surfaces see their tensors, a line of each kind."""
    entries: dict[str, list[str]] = {}
    for parameter, argument in pairs:
        if not parameter.views:
            continue
        tensor = names.get(parameter.name, parameter.name)
        made = textures.get(argument[0].text if len(argument) == 1 else "")
        made = made or (next(iter(textures.values())) if len(textures) == 1 else None)
        sides = {**problem.inputs, **problem.outputs}.get(tensor, "n").split()
        if made is not None and "memory" in made.words:
            size = [" * ".join(sides)]
            if each := made.words.get("channels"):
                size = [f"{size[0]} // {each}"]
                proposal.notes.append(
                    f"a texel of '{parameter.name}' is {each} elements: what counts texels is {size[0]}"
                )
        else:
            size = _texels(proposal, parameter.name, made, sides, known)
        words = {"tensor": f'"{tensor}"', "size": "[" + ", ".join(f'"{part}"' for part in size) + "]"}
        words |= (made.words if made else {}) if parameter.views == "textures" else {}
        table = ", ".join(f"{key} = {value}" for key, value in words.items())
        entries.setdefault(parameter.views, []).append(f"{parameter.name} = {{ {table} }}")
    return [f"{kind} = {{ {', '.join(listed)} }}" for kind, listed in entries.items()]


def _texels(
    proposal: Proposal,
    name: str,
    made: HostTexture | None,
    sides: Sequence[str],
    known: Mapping[str, Sequence[Token] | str],
) -> list[str]:
    """Width and height of the array that the host allocated, else of the tensor."""
    why = "no cudaMallocArray of it"
    if made is not None and made.size:
        try:
            return [_plain(converted(part, known)) for part in made.size]
        except Unreadable as error:
            why = str(error)
    proposal.notes.append(f"the size of '{name}' in texels is guessed from its tensor ({why})")
    return list(sides[:-3:-1])


def _listed(text: str) -> list[str]:
    """The items of a list of expressions as the header has it."""
    return re.findall(r'"([^"]*)"', text)


def _types(kernel: Declaration, launch: HostLaunch | None) -> dict[str, Sequence[Token]]:
    """What a template's types are: as the launch has them, else float."""
    if not kernel.is_template:
        return {}
    declared = split(kernel.tokens[2 : closing_angle(kernel.tokens, 1)], ",")
    given = split(tokens_of(launch.template)[1:-1], ",") if launch and launch.template else []
    found: dict[str, Sequence[Token]] = {}
    for index, words in enumerate(declared):
        if len(words) > 1 and words[0].text in ("typename", "class"):
            told = given[index] if index < len(given) else ()
            unknown = not told or (len(told) == 1 and told[0].text in UNTOLD | {words[1].text})
            found[words[1].text] = tokens_of("float") if unknown else told
    return found


def _matched(
    proposal: Proposal, parameters: Sequence[Parameter], problem: Operator, stored: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, str] | None, dict[str, str]]:
    """Pointers' tensors, the output that begins as an input, and whole numbers' axes, each by the parameter's name."""
    viewed = _viewed(parameters, problem)
    inputs = [name for name in problem.inputs if name not in viewed.values()]
    outputs = [name for name in problem.outputs if name not in viewed.values()]
    pointers = [p for p in parameters if p.is_pointer]
    names: dict[str, str] = {}
    in_place: tuple[str, str] | None = None
    if not viewed and len(pointers) == len(outputs) and len(inputs) == len(outputs) == 1:
        names, in_place = {pointers[0].name: outputs[0]}, (outputs[0], inputs[0])
    elif problem.in_place and len(pointers) == len(inputs) + len(outputs) - len(problem.in_place):
        written = [p for p in pointers if not p.is_const]
        written = [p for p in written if p.name in stored] if len(written) > len(outputs) else written
        others = [name for name in inputs if name not in problem.in_place.values()]
        names = {p.name: name for p, name in zip(written, outputs, strict=False)}
        names |= {p.name: n for p, n in zip((p for p in pointers if p not in written), others, strict=False)}
        in_place = ("", "")
    else:
        written = [p for p in pointers if not p.is_const]
        if len(written) != len(outputs) == len([p for p in written if p.name in stored]):
            written = [p for p in written if p.name in stored]
        elif len(written) != len(outputs):
            named = [p for p in pointers if p.name.lower().lstrip("hd_") in OUTPUTS or p.name.lower() in outputs]
            written = named if len(named) == len(outputs) else pointers[len(pointers) - len(outputs) :]
            guessed = ", ".join(p.name for p in written) or "the kernel has none"
            proposal.notes.append(f"which pointer is written is guessed: {guessed}")
        read = [p for p in pointers if p not in written]
        names = {p.name: name for p, name in zip(written, outputs, strict=False)}
        same = {p.name: name for p in read for name in inputs if p.name.lower().lstrip("d_") == name}
        if len(same) != len(read):
            same = {p.name: name for p, name in zip(read, inputs, strict=False)}
        names |= same
    numbers = [p for p in parameters if not (p.is_pointer or p.views or re.search(NO_NUMBER, p.type))]
    axes = [name for name, value in problem.axes.items() if isinstance(value, int)]
    called = {p.name: (p.name.lower().lstrip("_"), *AXES.get(p.name.lower(), ())) for p in numbers}
    found = {name: axis for name, words in called.items() for axis in axes if axis.lower() in words}
    if len(axes) == 1 and not found:
        found = {p.name: axes[0] for p in numbers if p.name.lower() in COUNTS} or {p.name: axes[0] for p in numbers[:1]}
    elif len(found) < len(numbers) == len(axes):
        found = {p.name: axis for p, axis in zip(numbers, axes, strict=True)}
        proposal.notes.append(
            f"which number is which axis is guessed: {', '.join(f'{k} is {v}' for k, v in found.items())}"
        )
    return {**names, **viewed}, in_place, found


def _viewed(parameters: Sequence[Parameter], problem: Operator) -> dict[str, str]:
    """Tensors that textures and surfaces show: outputs by surfaces, inputs by textures, by name or in order."""
    found: dict[str, str] = {}
    for kind, tensors in (("surfaces", problem.outputs), ("textures", problem.inputs)):
        seen = [p.name for p in parameters if p.views == kind]
        left = [name for name in tensors if name not in seen]
        found |= {name: name if name in tensors else left.pop(0) if left else name for name in seen}
    return found


def _group(
    proposal: Proposal,
    group: GivenParameter,
    names: Mapping[str, str],
    axes: Mapping[str, str],
    known: Mapping[str, Sequence[Token] | str],
) -> str:
    """A parameter's argument as the header has it."""
    if group.unreadable:
        proposal.notes.append(
            f"structure '{group.parameter.name}' has a member that no header gives ({group.unreadable}): let the "
            "kernel take its fields one by one"
        )
    found = [_argument(proposal, parameter, names, axes, given, known) for parameter, given in group.fields]
    if not group.is_struct:
        return found[0]
    listed = (typed(text, parameter.type) for text, (parameter, _) in zip(found, group.fields, strict=True))
    return f"{{ struct = [{', '.join(listed)}] }}"


def _argument(
    proposal: Proposal,
    parameter: Parameter,
    names: Mapping[str, str],
    axes: Mapping[str, str],
    given: tuple[Token, ...],
    known: Mapping[str, Sequence[Token] | str],
) -> str:
    """One argument as the header has it."""
    if parameter.views:
        return f'"{parameter.name}"'
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
            with contextlib.suppress(Unreadable):
                return f'{{ {kind} = "{converted(given, known, real=True)}" }}'
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
