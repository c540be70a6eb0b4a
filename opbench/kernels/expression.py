"""Expressions in variant headers over integers, booleans and floats, parsed with an allowlist, never by `eval`."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from opbench.errors import UsageError, unknown_name

ExpressionValue = int | float | str | bool
CompiledExpression = Callable[[Mapping[str, ExpressionValue]], object]
"""An expression as a function of the values of its variables."""


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `value`."""
    return cdiv(value, multiple) * multiple


FUNCTIONS: dict[str, Callable[..., object]] = {"cdiv": cdiv, "min": min, "max": max}
REAL_FUNCTIONS: dict[str, Callable[..., object]] = {**FUNCTIONS, "sqrt": math.sqrt, "exp": math.exp, "log": math.log}
"""Functions that an expression over floats may call."""

INTEGER_BITS = 63
"""Bits of the largest integer without its sign: every number must fit into a signed 64-bit integer."""
INTEGER_LIMIT = 2**INTEGER_BITS
MAX_LENGTH = 600
"""Most characters of one expression, so that nesting cannot overflow Python's stack."""

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], object]] = {ast.USub: operator.neg, ast.Not: operator.not_}


_REAL_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


@functools.lru_cache(maxsize=4096)
def parse(text: str, is_real: bool = False) -> ast.expr:
    """Parse one expression; raise UsageError for a part that is not allowed.

    With `is_real`, the expression computes floats.
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(
            f"'{text[:40]}…' is not a valid expression: {len(text)} characters; write at most {MAX_LENGTH}",
            kind="expression-too-long",
            subject=text,
            value=len(text),
            allowed=MAX_LENGTH,
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise UsageError(
            f"'{text}' is not a valid expression: {error.msg}; correct its syntax, for example: (n + 255) // 256",
            kind="not-an-expression",
            subject=text,
        ) from None
    for node in ast.walk(tree):
        _require_allowed(node, text, is_real)
    return tree


def _require_allowed(node: ast.AST, text: str, is_real: bool) -> None:
    operators = (*_BINARY, *_COMPARE, *_UNARY, ast.And, ast.Or, ast.Load, *((ast.Div,) if is_real else ()))
    functions = REAL_FUNCTIONS if is_real else FUNCTIONS
    node_types = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Name, ast.Tuple, ast.UnaryOp)
    if isinstance(node, (*operators, *node_types)):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, str, float) if is_real else (int, str)):
        return
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in functions
        and not node.keywords
    ):
        return
    node_text = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
    numbers, quotient = ("numbers", "/ //") if is_real else ("integers", "//")
    raise UsageError(
        f"'{node_text}' is not allowed in the expression '{text}'; use {numbers}, names, + - * {quotient} % ** << >>, "
        f"comparisons, and/or/not, if/else and {', '.join(sorted(functions))}",
        kind="not-allowed-in-expression",
        subject=text,
        value=node_text,
    )


@functools.lru_cache(maxsize=4096)
def names(text: str) -> frozenset[str]:
    """Return the variables of an expression."""
    tree = parse(text)
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - set(FUNCTIONS)


def evaluate(text: str | int, scope: Mapping[str, ExpressionValue], is_real: bool = False) -> Any:
    """Return the value of an expression; `scope` gives the values of its variables.

    With `is_real`, the expression computes floats.
    """
    if isinstance(text, int):
        return text
    try:
        return _compiled(text, is_real)(scope)
    except KeyError as error:
        raise UsageError(unknown_name("name", error.args[0], scope, place=f"expression '{text}'")) from None
    except (ZeroDivisionError, TypeError, OverflowError, ValueError) as error:
        raise UsageError(
            f"the expression '{text}' cannot be computed with {dict(scope)}: {error}; change the expression or these "
            "sizes",
            kind="expression-fails",
            subject=text,
            value=type(error).__name__,
        ) from None


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, is_real: bool) -> CompiledExpression:
    return _compile(parse(text, is_real))


def _compile(node: ast.expr) -> CompiledExpression:
    """Compile an expression to a function of its variables, because evaluating the tree is three times as slow."""
    match node:
        case ast.Constant(value=value):
            return lambda scope: value
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right):
            return _compile_arithmetic(type(op), _compile(left), _compile(right))
        case ast.UnaryOp(op=op, operand=operand):
            unary, inner = _UNARY[type(op)], _compile(operand)
            return lambda scope: unary(inner(scope))
        case ast.BoolOp(op=op, values=values):
            join, operands = all if isinstance(op, ast.And) else any, [_compile(value) for value in values]
            return lambda scope: join(part(scope) for part in operands)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, then, otherwise = _compile(test), _compile(body), _compile(orelse)
            return lambda scope: then(scope) if condition(scope) else otherwise(scope)
        case ast.Tuple(elts=elements):
            items = [_compile(element) for element in elements]
            return lambda scope: tuple(item(scope) for item in items)
        case ast.Call(func=ast.Name(id=name), args=args):
            function, compiled_args = REAL_FUNCTIONS[name], [_compile(argument) for argument in args]
            return lambda scope: function(*(argument(scope) for argument in compiled_args))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            start, rights = _compile(left), [_compile(right) for right in comparators]
            compares = [_COMPARE[type(op)] for op in ops]
            return lambda scope: _compare_chain(start(scope), compares, [right(scope) for right in rights])
    raise UsageError(
        f"'{ast.unparse(node)}' is not allowed in an expression; use numbers, names, arithmetic and comparisons",
        kind="not-allowed-in-expression",
        value=ast.unparse(node),
    )


def _compile_arithmetic(
    operation: type[ast.operator], left_function: CompiledExpression, right_function: CompiledExpression
) -> CompiledExpression:
    """Return a function for one arithmetic operation, fast for small integers."""
    if operation in (ast.Div, ast.Pow, ast.LShift):
        return lambda scope: _arithmetic(operation, left_function(scope), right_function(scope))
    compute = _BINARY[operation]

    def evaluated(scope: Mapping[str, ExpressionValue]) -> Any:
        left_value, right_value = left_function(scope), right_function(scope)
        if (
            type(left_value) is int
            and type(right_value) is int
            and -INTEGER_LIMIT < (result := compute(left_value, right_value)) < INTEGER_LIMIT
        ):
            return result
        return _arithmetic(operation, left_value, right_value)

    return evaluated


def _arithmetic(operation: type[ast.operator], left: object, right: object) -> float:
    """Compute an operation; raise OverflowError before computing an integer that would exceed 64 bits."""
    # Only an expression over floats can contain such an operation.
    if operation is ast.Div or isinstance(left, float) or isinstance(right, float):
        if not (isinstance(left, (int, float)) and isinstance(right, (int, float)) and operation in _REAL_OPERATIONS):
            raise TypeError(f"{left!r} and {right!r}: this operator is not allowed for floats; use + - * / or **")
        real_result = _REAL_OPERATIONS[operation](left, right)
        if isinstance(real_result, complex):
            raise ValueError(f"{left} ** {right} is not a real number")
        return real_result
    if not (isinstance(left, int) and isinstance(right, int)):
        raise TypeError(f"{left!r} and {right!r}: both must be integers")
    if operation is ast.Pow and right < 0:
        raise ValueError(f"{left} ** {right} is not an integer")
    result_bits = 0
    if operation is ast.Pow:
        result_bits = max(0, left.bit_length() - 1) * right
    elif operation is ast.LShift:
        result_bits = left.bit_length() + right
    if result_bits > INTEGER_BITS:
        raise OverflowError(_overflow_message(f"{left} {'**' if operation is ast.Pow else '<<'} {right}"))
    result: int = _BINARY[operation](left, right)
    if result.bit_length() > INTEGER_BITS:
        raise OverflowError(_overflow_message(f"{left} and {right} give {result}, which"))
    return result


def _overflow_message(operation: str) -> str:
    return (
        f"{operation} does not fit into a signed 64-bit integer; "
        f"integers are allowed from -2**{INTEGER_BITS} to 2**{INTEGER_BITS}"
    )


def _compare_chain(left: object, compares: list[Callable[[Any, Any], object]], rights: list[object]) -> bool:
    for compare, right in zip(compares, rights, strict=True):
        if not compare(left, right):
            return False
        left = right
    return True
