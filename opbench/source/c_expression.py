"""Convert integer expressions in the C of host code to the expressions of variant headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, split, text_of, tokens

TYPE_BYTES = {
    "float": 4, "int": 4, "unsigned": 4, "double": 8, "half": 2, "__half": 2, "__nv_bfloat16": 2, "char": 1, "bool": 1,
    "short": 2, "long": 8, "size_t": 8, "float2": 8, "float4": 16, "uint8_t": 1, "int64_t": 8, "half2": 4, "T": 4,
    "uint64_t": 8, "int32_t": 4, "uint32_t": 4, "int16_t": 2, "uint16_t": 2, "int8_t": 1, "uint": 4, "uchar": 1,
    "int2": 8, "int4": 16, "uint2": 8, "uint4": 16, "double2": 16, "float3": 12, "uchar4": 4, "uchar3": 3, "int3": 12,
    "ushort": 2, "ulong": 8, "__half2": 4, "__nv_bfloat162": 4, "curandState": 48, "curandState_t": 48, "clock_t": 8,
    "cuComplex": 8, "cuFloatComplex": 8, "cufftComplex": 8, "cuDoubleComplex": 16, "cufftDoubleComplex": 16, "dim3": 12,
}  # fmt: skip
CAST_TYPES = frozenset(
    [
        "int",
        "unsigned",
        "long",
        "float",
        "double",
        "size_t",
        "uint32_t",
        "int32_t",
        "int64_t",
        "uint64_t",
        "short",
        "char",
        "dim3",
    ]
)
ROUND_UP_FUNCTION = re.compile(r"(?i)(ceil|div_?up|updiv|round_?up_?div|divide_?up|i_?div_?up|cdiv|blocks_?for)")
"""Matches names of functions that divide and round up."""
REAL_CALLS = {
    "sqrt": "sqrt", "sqrtf": "sqrt", "rsqrt": "1 / sqrt", "rsqrtf": "1 / sqrt", "exp": "exp", "expf": "exp",
    "log": "log", "logf": "log",
}  # fmt: skip
"""C functions of floats and their names in a header's expressions."""
MIN_MAX_FUNCTIONS = {"imin": "min", "imax": "max", "MIN": "min", "MAX": "max", "fmin": "min", "fmax": "max"}
"""Names of macros and functions for the minimum or maximum of two numbers."""
OPERATOR_PRECEDENCE = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
PYTHON_OPERATORS = {"||": "or", "&&": "and", "/": "//"}
DEVICE_LIMIT = re.compile(r"maxGridSize|[pP]rop\b.*\.max|maxThreadsPer|max_?blocks?|MAX_?BLOCKS?|INT_MAX", re.ASCII)
"""Matches device limits in an expression."""
MAX_DEPTH = 12
"""Longest chain of definitions that one expression may use."""


class UnsupportedExpression(Exception):
    """An expression that a variant's header cannot express."""


def convert(
    expression_tokens: Sequence[Token],
    values_by_name: Mapping[str, Sequence[Token] | str],
    depth: int = 0,
    is_real: bool = False,
) -> str:
    """Convert a C expression, and replace each name in `values_by_name`; raise Unreadable if that fails.

    With `is_real`, the expression computes floats.
    """
    return _Converter(values_by_name, depth, is_real).convert_whole(_join_operators(expression_tokens))


def _join_operators(expression_tokens: Sequence[Token]) -> list[Token]:
    """Join pairs of tokens that form one operator, such as `<` and `=`."""
    joined: list[Token] = []
    for token in expression_tokens:
        pair = (joined[-1].text + token.text) if joined and joined[-1].end == token.start else ""
        if pair in ("<<", ">>", "<=", ">=", "==", "!=", "&&", "||"):
            joined[-1] = Token("mark", pair, joined[-1].start)
        else:
            joined.append(token)
    return joined


class _Converter:
    """Convert an expression by splitting it at the operator with the lowest precedence."""

    def __init__(self, values_by_name: Mapping[str, Sequence[Token] | str], depth: int, is_real: bool = False) -> None:
        self.values_by_name = values_by_name
        self.depth = depth
        self.is_real = is_real

    def convert_whole(self, expression_tokens: Sequence[Token]) -> str:
        if not expression_tokens or self.depth > MAX_DEPTH:
            raise UnsupportedExpression(text_of(expression_tokens) or "nothing")
        if (question_index := self._operator_outside_brackets(expression_tokens, ("?",))) >= 0:
            colon_index = self._operator_outside_brackets(expression_tokens, (":",))
            if colon_index > question_index:
                test, yes, no = (
                    expression_tokens[:question_index],
                    expression_tokens[question_index + 1 : colon_index],
                    expression_tokens[colon_index + 1 :],
                )
                return f"({self.convert_whole(yes)} if {self.convert_whole(test)} else {self.convert_whole(no)})"
        for signs in OPERATOR_PRECEDENCE:
            operator_index = self._operator_outside_brackets(expression_tokens, signs)
            if operator_index > 0:
                left, right = (
                    self.convert_whole(expression_tokens[:operator_index]),
                    self.convert_whole(expression_tokens[operator_index + 1 :]),
                )
                sign = (
                    expression_tokens[operator_index].text
                    if self.is_real and expression_tokens[operator_index].text == "/"
                    else PYTHON_OPERATORS.get(
                        expression_tokens[operator_index].text, expression_tokens[operator_index].text
                    )
                )
                return f"{_in_brackets(left)} {sign} {_in_brackets(right)}"
        return self._convert_operand(expression_tokens)

    def _operator_outside_brackets(self, expression_tokens: Sequence[Token], signs: tuple[str, ...]) -> int:
        """Return the index of the last operator token in `signs` that is outside of all brackets; -1 if there is none.

        For "?", which groups from the right, it is the index of the first.
        """
        last_index, index = -1, 0
        while index < len(expression_tokens):
            token = expression_tokens[index]
            if token.kind == "mark" and token.text in "([{":
                index = closing_bracket(expression_tokens, index)
            elif (
                token.text.endswith("_cast")
                and index + 1 < len(expression_tokens)
                and expression_tokens[index + 1].text == "<"
            ):
                index = closing_angle_bracket(expression_tokens, index + 1)
            elif token.kind == "mark" and token.text in signs and index > 0:
                previous = expression_tokens[index - 1]
                if previous.kind != "mark" or previous.text in (")", "]"):
                    last_index = index
                    if signs == ("?",):
                        return last_index
            index += 1
        return last_index

    def _convert_operand(self, expression_tokens: Sequence[Token]) -> str:
        first_token = expression_tokens[0]
        if first_token.text == "(" and closing_bracket(expression_tokens, 0) == len(expression_tokens) - 1:
            return self.convert_whole(expression_tokens[1:-1])
        if first_token.text == "(":  # a cast
            closing = closing_bracket(expression_tokens, 0)
            if all(token.kind == "name" and token.text in CAST_TYPES for token in expression_tokens[1:closing]):
                return self.convert_whole(expression_tokens[closing + 1 :])
        if first_token.text in ("-", "!"):
            return (
                f"{'-' if first_token.text == '-' else 'not '}{_in_brackets(self.convert_whole(expression_tokens[1:]))}"
            )
        if first_token.kind == "number" and len(expression_tokens) == 1:
            size = self.values_by_name.get(first_token.text)  # a number that the launch passes for an axis
            return size if isinstance(size, str) else _convert_number(first_token.text, self.is_real)
        if (
            first_token.kind == "name"
            and len(expression_tokens) > 3
            and expression_tokens[1].text == ":" == expression_tokens[2].text
        ):
            return self.convert_whole(expression_tokens[3:])
        if (
            first_token.kind == "name"
            and len(expression_tokens) > 2
            and expression_tokens[1].text == "::"
            and expression_tokens[-1].text == ")"
        ):
            return self.convert_whole(expression_tokens[2:])
        if first_token.text == "static_cast" and len(expression_tokens) > 3:
            return self.convert_whole(expression_tokens[closing_angle_bracket(expression_tokens, 1) + 1 :])
        if first_token.kind == "name" and len(expression_tokens) == 1:
            return self._convert_name(first_token.text)
        if len(expression_tokens) > 2 and expression_tokens[1].text in (".", "->"):
            return self._convert_member(expression_tokens)
        if (
            first_token.kind == "name"
            and expression_tokens[1].text == "("
            and closing_bracket(expression_tokens, 1) == len(expression_tokens) - 1
        ):
            text = text_of(expression_tokens)
            if text in self.values_by_name:
                return self._convert_name(text)
            return self._convert_call(first_token.text, split(expression_tokens[2:-1], ","))
        raise UnsupportedExpression(text_of(expression_tokens))

    def _convert_member(self, expression_tokens: Sequence[Token]) -> str:
        """Convert a struct's field, the size of a vector or a tensor, or a component of a dim3."""
        if (text := text_of(expression_tokens)) in self.values_by_name:
            return self._convert_name(text)
        first_name, member, remainder = (
            expression_tokens[0].text,
            expression_tokens[2].text,
            text_of(expression_tokens[3:]),
        )
        if f"{first_name}.{member}" in self.values_by_name and (not remainder or (member, remainder) == ("size", "()")):
            return self._convert_name(f"{first_name}.{member}")
        if member in ("x", "y", "z") and not remainder:
            return self._convert_dim3_component(first_name, "xyz".index(member))
        raise UnsupportedExpression(text_of(expression_tokens))

    def _convert_name(self, name: str) -> str:
        if name not in self.values_by_name:
            raise UnsupportedExpression(name)
        value = self.values_by_name[name]
        return value if isinstance(value, str) else convert(value, self.values_by_name, self.depth + 1, self.is_real)

    def _convert_dim3_component(self, name: str, axis: int) -> str:
        """Convert a component of a dim3."""
        value = self.values_by_name.get(name)
        if isinstance(value, str) or not value or value[0].text not in ("dim3", "{"):
            raise UnsupportedExpression(f"{name}.{'xyz'[axis]}")
        sides = split(value[1 + (value[0].text == "dim3") : -1], ",")
        return convert(sides[axis], self.values_by_name, self.depth + 1) if axis < len(sides) else "1"

    def _is_real(self, expression_tokens: Sequence[Token], depth: int = 0) -> bool:
        """Return whether an expression computes floats: by a literal, a cast or the definition of a name."""
        for token in expression_tokens:
            if token.text in ("float", "double") or (
                token.kind == "number" and re.search(r"^[\d']*\.|^\d+f$", token.text)
            ):
                return True
            value = self.values_by_name.get(token.text, "") if token.kind == "name" and depth < MAX_DEPTH else ""
            if not isinstance(value, str) and self._is_real(value, depth + 1):
                return True
        return False

    def _type_tokens(self, expression_tokens: Sequence[Token]) -> Sequence[Token]:
        """Return the tokens of a type; an alias is replaced by its definition."""
        value = self.values_by_name.get(expression_tokens[0].text) if len(expression_tokens) == 1 else None
        return expression_tokens if value is None or isinstance(value, str) else value

    def _convert_call(self, name: str, arguments: Sequence[Sequence[Token]]) -> str:
        if name == "sizeof" and len(arguments) == 1:
            type_words = [token.text for token in self._type_tokens(arguments[0]) if token.text in TYPE_BYTES]
            base_type = next(
                (word for word in type_words if word not in ("unsigned", "signed")), "".join(type_words[:1])
            )
            if base_type and all(token.text != "*" for token in arguments[0]):
                return str(TYPE_BYTES[base_type])
            type_text = " ".join(token.text for token in arguments[0] if token.text != "struct")
            if isinstance(size := self.values_by_name.get(f"sizeof {type_text}"), str):
                return size
            raise UnsupportedExpression(f"sizeof({''.join(token.text for token in arguments[0])})")
        if self.is_real and name in REAL_CALLS and len(arguments) == 1:
            radicand = self.convert_whole(arguments[0])
            return f"1 / sqrt({radicand})" if name.startswith("rsqrt") else f"{REAL_CALLS[name]}({radicand})"
        if name in ("ceil", "ceilf") and len(arguments) == 1:
            inner = list(arguments[0])
            slash = self._operator_outside_brackets(inner, ("/",))
            if slash > 0 and self._is_real(inner):
                return f"cdiv({self.convert_whole(inner[:slash])}, {self.convert_whole(inner[slash + 1 :])})"
            return self.convert_whole(inner)
        name = MIN_MAX_FUNCTIONS.get(name, name)
        if name in ("min", "max") and len(arguments) == 2:
            limits = [DEVICE_LIMIT.search(text_of(argument)) is not None for argument in arguments]
            if name == "min" and any(limits):  # a device limit
                return self.convert_whole(arguments[limits.index(False)] if not all(limits) else arguments[0])
            return f"{name}({self.convert_whole(arguments[0])}, {self.convert_whole(arguments[1])})"
        if ROUND_UP_FUNCTION.search(name) and len(arguments) == 2:
            return f"cdiv({self.convert_whole(arguments[0])}, {self.convert_whole(arguments[1])})"
        if name in CAST_TYPES and len(arguments) == 1:
            return self.convert_whole(arguments[0])
        raise UnsupportedExpression(f"{name}()")


def _in_brackets(text: str) -> str:
    return text if re.fullmatch(r"\w+|\w+\([^()]*\)", text) else f"({text})"


def _convert_number(text: str, is_real: bool) -> str:
    text = text.replace("'", "")
    digits = text.rstrip("uUlLfF") if not text.lower().startswith("0x") else text.rstrip("uUlL")
    try:
        value = int(digits, 0) if re.fullmatch(r"0[xXbB]\w+|\d+", digits) else float(digits)
    except ValueError:
        raise UnsupportedExpression(text) from None
    if value != int(value) or (is_real and isinstance(value, float)):
        if not is_real:
            raise UnsupportedExpression(text)
        return repr(value)
    return str(int(value))


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of an expression."""
    return list(tokens(text))
