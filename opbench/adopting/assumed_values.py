"""Assume the sizes and the launches that host code does not give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from opbench.adopting.host_launches import parameter_of, plain_name
from opbench.adopting.host_program import HostProgram, program_of
from opbench.adopting.host_values import HostValues
from opbench.adopting.parsed_file import ParsedFile
from opbench.adopting.proposal import Proposal
from opbench.errors import UsageError
from opbench.kernels.memory_header import is_identifier
from opbench.source.c_expression import tokens_of
from opbench.source.scan import Declaration, declarations
from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, text_of, texts_of

ASSUMED_ONLY_SIZE = 1000
"""The assumed size of a host function that nothing calls and that has one size; it is no multiple of a block."""
ASSUMED_SIZE_OF_SEVERAL = 64
"""The assumed value of each size of a host function that nothing calls and that has several sizes, unless a template
argument is larger: it may be a tile, and kernels without bounds checks need whole tiles."""
ASSUMED_UNLAUNCHED_SIZE = 1024
"""The assumed only size of a kernel that nothing launches; it is a multiple of usual blocks."""
ASSUMED_SHARED_BYTES = 16 << 10
"""The assumed bytes of dynamic shared memory of a kernel that nothing launches."""
ASSUMED_WINDOW = 3
"""The assumed size of a filter or a window, which the sizes of images and signals must exceed."""
WINDOW_SIZE = re.compile(
    r"(?i)(kernel|filter|mask|window|conv)_?(size|width|height|len|length|rows|cols|w|h|n|dim)$|ksize"
)
"""Matches names of the sizes of filters and windows."""
STEP_OR_BORDER = re.compile(r"(?i)(stride|dilation|step|padding|pad|radius)(_?[a-z0-9])?$")
"""Matches names of a window's step, distance and border; 1 is valid for each."""
BATCH_SIZE = re.compile(r"(?i)(^|_)(batch(es|_?size)?|bsz?|bsize|n?_?heads?|num_?heads?|head_?num)$")
"""Matches names of numbers of images, sequences or heads, which need no large value."""
ASSUMED_BATCH, MIN_SIZES_WITH_BATCH = 2, 3
"""The assumed number of images or heads, and the fewest sizes of a file with which it is assumed."""
MAX_BLOCK_SIDE = 32
"""The largest value of a kernel's only template argument that is taken for a side of its block."""


def assume_sizes(values: HostValues, proposal: Proposal, only_size: int) -> None:
    """Assume a value for each needed size that the file does not give: a parameter or a command-line option.

    `only_size` is the value of a size without others.
    """
    blocks = _assume_blocks(values, proposal)
    members = values.unknown_members()
    variable_by_member = {
        member: name
        for name in values.needed_variables()
        if (member := _text_without_cast(values.program.values_by_name.get(name, ()))) in members
    }
    external_names = {*_external_names(values), *variable_by_member.values()} - blocks
    needed_names = [
        *(name for name in values.needed_variables() if name in external_names),
        *(member for member in members if member not in variable_by_member),
        *values.unknown_template_values(),
    ]
    needed_names = [name for name in needed_names if name in members or name not in values.replacement_values]
    assumed = _assumed_values(values, needed_names, only_size)
    values.replacement_values |= {name: str(size) for name, size in assumed.items()}
    values.replacement_values |= {
        member: values.replacement_values[name]
        for member, name in variable_by_member.items()
        if name in values.replacement_values
    }
    for name in needed_names:
        option = f"; change it with --size {plain_name(name)}=…" if is_identifier(plain_name(name)) else ""
        proposal.guess(plain_name(name), values.replacement_values[name], f"the file does not give it{option}")
    _note_defaults(values, proposal)


def _external_names(values: HostValues) -> Iterable[str]:
    """Yield the parameters and command-line options that have no size in the file."""
    for parameter in values.program.parameters:
        if parameter.is_whole_number:
            yield parameter.name
    yield from filter(values.is_without_size, values.program.option_expressions)


def _assumed_values(values: HostValues, names: Sequence[str], only_size: int) -> dict[str, int]:
    """Return the value to assume for each name: of a block, of a window or a batch, or of another size."""
    small_sizes = {name: size for name in names if (size := _small_size(plain_name(name)))}
    if len(names) >= MIN_SIZES_WITH_BATCH:
        small_sizes |= {name: ASSUMED_BATCH for name in names if BATCH_SIZE.search(plain_name(name))}
    for launched_kernel in values.launched_kernels:
        small_sizes |= values.block_sizes(launched_kernel)
    sizes = [name for name in names if name not in small_sizes]
    size = only_size if len(sizes) == 1 else max(ASSUMED_SIZE_OF_SEVERAL, values.largest_tile())
    return {name: small_sizes.get(name, size) for name in names}


def _note_defaults(values: HostValues, proposal: Proposal) -> None:
    """Add a guess for each needed variable whose default in the file the command line can replace."""
    for name in values.needed_variables():
        if name in values.program.option_expressions and name not in values.replacement_values:
            value = text_of(values.program.values_by_name.get(name, ()))
            reason = f"its default; the host code can set it by {values.program.option_expressions[name]}"
            if value != values.program.option_expressions[name]:
                proposal.guess(plain_name(name), plain_name(value), reason)


def _assume_blocks(values: HostValues, proposal: Proposal) -> set[str]:
    """Assume a usual block size for each needed parameter of type dim3; return the names of these parameters."""
    needed_names, code, program = values.needed_variables(), values.program.code, values.program
    blocks = [p.name for p in program.parameters if p.type.split()[-1:] == ["dim3"] and p.name in needed_names]
    template_values = (re.fullmatch(r"<\s*(\d+)\s*>", launch.template) for launch in program.launches)
    block_side = next((match[1] for match in template_values if match and int(match[1]) <= MAX_BLOCK_SIDE), "16")
    for name in blocks:
        used_components = {
            component.text for token, _, component in zip(code, code[1:], code[2:], strict=False) if token.text == name
        }
        block = f"dim3({block_side}, {block_side})" if "y" in used_components else "dim3(256)"
        program.values_by_name[name] = tokens_of(block)
        proposal.guess(plain_name(name), block, "the file does not give it")
    return set(blocks)


def _text_without_cast(tokens: Sequence[Token]) -> str:
    """Return an expression as text, without a cast before it."""
    if texts_of(tokens[:1]) == ["("] and (closing := closing_bracket(tokens, 0)) < len(tokens) - 1:
        tokens = tokens[closing + 1 :]
    if texts_of(tokens[:2]) == ["static_cast", "<"] and tokens[-1].text == ")":
        tokens = tokens[closing_angle_bracket(tokens, 1) + 2 : -1]
    return text_of(tokens)


def _small_size(name: str) -> int:
    """Return the size to assume for a variable that is no size of a tensor, by its name; 0 for others."""
    return ASSUMED_WINDOW if WINDOW_SIZE.search(name) else int(bool(STEP_OR_BORDER.search(name)))


def assumed_program(file: ParsedFile) -> HostProgram:
    """Return a host program that launches all kernels of a file without launches.

    Raises UsageError if opbench can assume no launch.
    """
    host_source, kernels = _assumed_host_source(file), file.kernels
    device_declarations = [
        declaration for declaration in file.declarations if declaration.kind != "function" or declaration.is_device
    ]
    program = program_of([*device_declarations, *declarations(host_source)], file.constants)
    if not program.launches:
        raise UsageError(
            f"{file.path}: opbench can neither read nor propose a launch of {', '.join(kernels)}; add host code with "
            f"a launch such as {next(iter(kernels))}<<<grid, block>>>(…), or write a header by hand (see 'Write "
            "your own kernel' in README.md)",
            kind="no-launch",
            subject=file.path,
        )
    grid_synchronised = {name for name, kernel in kernels.items() if "this_grid" in kernel.uses}
    program.launches = [replace(launch, cooperative=launch.kernel in grid_synchronised) for launch in program.launches]
    return program


def _assumed_host_source(file: ParsedFile) -> str:
    """Return the source of a host function that launches all kernels of a file without launches.

    Raises UsageError for a kernel whose block has three dimensions, because no shape of it is usual.
    """
    parameters: dict[str, str] = {}
    launches = []
    for kernel in file.kernels.values():
        dimensions = _dimensions(kernel, file.functions)
        if "z" in dimensions:
            raise UsageError(
                f"{file.path}: nothing launches {kernel.name}, and opbench assumes no launch for a kernel that uses "
                f"threadIdx.z; add host code with a launch such as {kernel.name}<<<grid, dim3(32, 2, 2)>>>(…), or "
                "write a header by hand (see 'Your own kernel' in README.md)",
                kind="no-launch",
                subject=file.path,
                value=kernel.name,
            )
        parameters_of_kernel = [parameter for parameter in map(parameter_of, kernel.parameters()) if parameter.name]
        parameters |= {parameter.name: f"{parameter.type} {parameter.name}" for parameter in parameters_of_kernel}
        size_names = [parameter.name for parameter in parameters_of_kernel if parameter.is_whole_number]
        first_size = size_names[0] if size_names else "1024"
        configuration = f"({first_size} + 255) / 256, 256"
        if "y" in dimensions:
            last_size = size_names[1] if len(size_names) > 1 else first_size
            configuration = f"dim3(({first_size} + 15) / 16, ({last_size} + 15) / 16), dim3(16, 16)"
        if "extern" in {token.text for token in kernel.tokens}:
            configuration += f", {ASSUMED_SHARED_BYTES}"
        launches.append(
            f"{kernel.name}<<<{configuration}>>>({', '.join(parameter.name for parameter in parameters_of_kernel)});"
        )
    return f"void launch_all({', '.join(parameters.values())}) {{ {' '.join(launches)} }}\n"


def _dimensions(kernel: Declaration, functions: Mapping[str, Declaration]) -> set[str]:
    """Return the dimensions of the thread's index or the block's index that a kernel and its functions use."""
    result: set[str] = set()
    unvisited, visited = [kernel], {kernel.name}
    while unvisited:
        tokens = unvisited.pop().tokens
        for index, dot, member in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if dot.text == "." and index.text in ("threadIdx", "blockIdx"):
                result |= {member.text} if (index.text, member.text) != ("blockIdx", "z") else set()
            if index.text in functions and index.text not in visited:
                visited.add(index.text)
                unvisited.append(functions[index.text])
    return result
