"""The statements of a host function, with the functions that launch kernels inlined at their calls."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.adopting.host_launches import names_without_value, parameter_of
from opbench.source.c_expression import tokens_of
from opbench.source.names import NOT_A_TYPE, local_names
from opbench.source.scan import Declaration, declarations
from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, split, texts_of

ALLOCATION_FUNCTIONS = {
    "cudaMalloc": 1, "cudaMallocManaged": 1, "cudaMallocHost": 1, "cudaHostAlloc": 1, "cudaMallocAsync": 1,
    "hipMalloc": 1,
}  # fmt: skip
"""Functions that allocate memory for the pointer in argument 0, with the index of the argument that is its bytes."""
TYPE_PARAMETER_KEYWORDS = ("typename", "class")
MAX_CALL_DEPTH = 8
"""The greatest depth of nested calls that are inlined."""


@dataclass
class Inliner:
    """Inlines calls of functions that use GPU memory, launch kernels, or set a grid that all functions share."""

    functions: Mapping[str, Declaration]
    shapes: Collection[str]
    """Variables of type dim3 outside of functions."""
    _call_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _inlined: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._inlined = frozenset(name for name, function in self.functions.items() if self._is_inlined(function))

    def _is_inlined(self, function: Declaration) -> bool:
        pairs = itertools.pairwise(function.tokens)
        sets_shape = any(token.text in self.shapes and dot.text == "." for token, dot in pairs)
        return sets_shape or _uses_gpu_memory(function, self.functions)

    def statements_of(self, function: Declaration) -> tuple[Token, ...]:
        """Return the statements of a function with its calls inlined."""
        return tuple(self._flatten(function.tokens[function.body + 1 :], (function.name,)))

    def _flatten(self, code: Sequence[Token], call_stack: tuple[str, ...]) -> Iterator[Token]:
        """Yield statements, with calls of the inlined functions replaced by the statements of these functions.

        `call_stack` has the names of the functions around the code; a recursive call is not replaced.
        """
        start = 0
        for index, token in enumerate(code[:-1]):
            if token.text not in self._inlined or token.text in call_stack or len(call_stack) >= MAX_CALL_DEPTH:
                continue
            opening = closing_angle_bracket(code, index + 1) + 1 if code[index + 1].text == "<" else index + 1
            if opening < len(code) and code[opening].text == "(":
                yield from code[start:index]
                closing = min(closing_bracket(code, opening), len(code) - 1)
                template_arguments = code[index + 2 : opening - 1] if opening > index + 1 else ()
                yield Token("mark", ";", token.start)
                function, arguments = self.functions[token.text], code[opening + 1 : closing]
                yield from self._inline(function, arguments, template_arguments, call_stack)
                yield Token("mark", ";", token.start)
                start = closing + 1
        yield from code[start:]

    def _inline(
        self,
        function: Declaration,
        arguments: Sequence[Token],
        template_arguments: Sequence[Token],
        call_stack: tuple[str, ...],
    ) -> Iterator[Token]:
        """Yield a function's statements with renamed local variables, after assignments of its parameters."""
        suffix, tokens = f"${next(self._call_numbers)}", function.tokens
        parameters = [parameter_of(parameter_tokens) for parameter_tokens in function.parameters()]
        local_variables = (
            {p.name for p in parameters} | local_names(tokens) | _later_declarators(tokens[function.body :])
        )
        value_parameters = [
            (parameter_of(parameter_tokens), value)
            for parameter_tokens, value in zip(
                function.template_parameters(), split(template_arguments, ","), strict=False
            )
            if parameter_tokens and parameter_tokens[0].text not in TYPE_PARAMETER_KEYWORDS
        ]
        offset = tokens[0].start
        for parameter, argument in (*value_parameters, *zip(parameters, split(arguments, ","), strict=False)):
            yield from (
                *(token for token in tokens_of(parameter.type or "auto") if token.text != "const"),
                Token("name", parameter.name + suffix, offset),
                Token("mark", "=", offset),
                *argument,
                Token("mark", ";", offset),
            )
        body = [
            token._replace(text=token.text + suffix)
            if token.kind == "name" and token.text in local_variables
            else token
            for token in tokens[function.body + 1 : closing_bracket(tokens, function.body)]
        ]
        yield from self._flatten(body, (*call_stack, function.name))


def _uses_gpu_memory(declaration: Declaration, functions: Mapping[str, Declaration], depth: int = 0) -> bool:
    """Return whether a function launches a kernel, allocates or copies, directly or through functions that it calls."""
    token_texts = {token.text for token in declaration.tokens[max(0, declaration.body) :]}
    if "<<<" in token_texts or ALLOCATION_FUNCTIONS.keys() & token_texts or "cudaMemcpy" in token_texts:
        return True
    called_functions = [
        functions[word] for word in token_texts & functions.keys() if functions[word] is not declaration
    ]
    return depth < MAX_CALL_DEPTH and any(
        _uses_gpu_memory(called_function, functions, depth + 1) for called_function in called_functions
    )


def _later_declarators(code: Sequence[Token]) -> set[str]:
    """Return the second and later variables of each declaration, such as b and c in `float *a, *b = 0, **c;`."""
    result: set[str] = set()
    for index, token in enumerate(code[:-2]):
        starts_statement = index == 0 or code[index - 1].text in (";", "{", "}", "const", "unsigned")
        next_name = next((token for token in code[index + 1 :] if token.text != "*"), token)
        if starts_statement and token.kind == "name" and token.text not in NOT_A_TYPE and next_name.kind == "name":
            statement = code[index + 1 : next((i for i in range(index, len(code)) if code[i].text == ";"), index)]
            for declarator in split(statement, ",")[1:]:
                result |= {
                    token.text
                    for token in [token for token in declarator if token.text not in ("*", "&")][:1]
                    if token.kind == "name"
                }
    return result


def host_functions(all_declarations: Sequence[Declaration]) -> dict[str, Declaration]:
    """Return the functions of the host by name."""
    return {
        declaration.name: declaration
        for declaration in all_declarations
        if declaration.kind == "function" and not declaration.is_device
    }


def uncalled_launchers(all_declarations: Sequence[Declaration]) -> list[str]:
    """Return the functions that launch kernels and that nothing calls; all that launch if each of them is called."""
    functions = host_functions(all_declarations)
    launchers = [name for name, function in functions.items() if any(token.text == "<<<" for token in function.tokens)]
    called_names = {token.text for function in functions.values() for token in function.tokens[max(0, function.body) :]}
    return [name for name in launchers if name not in called_names] or launchers


def call_in_order(functions: Sequence[Declaration]) -> Declaration:
    """Return a function that calls these functions; their parameters of one name and type are one parameter."""
    types_by_name: dict[str, str] = {}
    calls = []
    for function in functions:
        arguments = []
        for parameter in map(parameter_of, function.parameters()):
            name, number = parameter.name, 2
            while types_by_name.setdefault(name, parameter.type) != parameter.type:
                name, number = f"{parameter.name}_{number}", number + 1
            arguments.append(name)
        calls.append(f"{function.name}({', '.join(filter(None, arguments))});")
    parameters = ", ".join(f"{parameter_type} {name}" for name, parameter_type in types_by_name.items() if name)
    return declarations(f"void all_launches({parameters}) {{ {' '.join(calls)} }}\n")[0]


def global_shapes(all_declarations: Sequence[Declaration]) -> list[str]:
    """Return the variables of type dim3 outside of functions that get no value where they are declared."""
    return [
        name
        for declaration in all_declarations
        if declaration.kind == "other" and texts_of(declaration.tokens[:1]) == ["dim3"]
        for name in names_without_value(declaration.tokens[1:])
    ]
