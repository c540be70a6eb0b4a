"""Compare the element types of a kernel's pointer parameters with the tensors that a launch passes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.kernels.launch import KernelLaunch
from opbench.kernels.scalar import ELEMENT_BYTES
from opbench.kernels.tensors import Tensor
from opbench.source.names import plain_kernel
from opbench.source.scan import Declaration, declarations
from opbench.source.sources import Source
from opbench.source.tokens import Token, split, tokens

RAW_BITS = "raw"
"""An element type for raw bytes of any type, such as `char` or `void`."""
C_TYPES: Mapping[str, str] = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "half_t": "f16", "nv_half": "f16",
    "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "bfloat16": "bf16",
    "bool": "bool", "byte": "u8",
    "char": "i8", "signed char": "i8", "int8_t": "i8",
    "unsigned char": "u8", "uchar": "u8", "uint8_t": "u8",
    "short": "i16", "short int": "i16", "int16_t": "i16",
    "unsigned short": "u16", "unsigned short int": "u16", "ushort": "u16", "uint16_t": "u16",
    "int": "i32", "signed": "i32", "signed int": "i32", "int32_t": "i32",
    "unsigned": "u32", "unsigned int": "u32", "uint": "u32", "uint32_t": "u32",
    "long": "i64", "long int": "i64", "long long": "i64", "long long int": "i64", "int64_t": "i64",
    "unsigned long": "u64", "unsigned long int": "u64", "ulong": "u64", "unsigned long long": "u64",
    "unsigned long long int": "u64", "uint64_t": "u64", "size_t": "u64",
}  # fmt: skip
"""The type name in headers for each C++ or CUDA type name; `_VECTOR` reads vectors such as `float4`."""
_VECTOR = re.compile(
    r"(float|double|char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong)([1-4])"
    r"|(half|__half|nv_half|__nv_bfloat16|nv_bfloat16)(2)"
)
_QUALIFIERS = frozenset(("const", "volatile", "__restrict__", "__restrict", "restrict", "struct", "typename"))
_REINTERPRETS = re.compile(r"\w+_as_\w+|reinterpret_cast|bit_cast|__builtin_memcpy|memcpy")
"""Functions with which a kernel reinterprets the bits of one type as another."""
MAX_ALIAS_DEPTH = 8
"""Longest chain of type aliases that is followed."""


@dataclass(frozen=True)
class PointerMismatch:
    """A parameter whose element type differs from its tensor's."""

    kernel: str
    parameter: str
    written: str
    """The type in the kernel's source, such as "int"."""
    tensor: str
    dtype: str
    file: str
    line: int

    def sentence(self, operator: str) -> str:
        """Describe the mismatch, such as "parameter 'x' is int*, and sum's x is f32"."""
        return f"parameter '{self.parameter}' is {self.written}*, and {operator}'s {self.tensor} is {self.dtype}"


@dataclass(frozen=True)
class PointerType:
    """The type that a pointer parameter points to."""

    written: str
    """The type with aliases resolved as far as possible, such as "float4"."""
    element: str
    """The element type, a value of `C_TYPES`; `RAW_BITS` for bytes, empty for an unknown type."""
    is_vector: bool = False


def pointer_accepts(pointer: PointerType, dtype: str, reinterprets: bool = False) -> bool:
    """Return whether a pointer parameter may receive a tensor of a dtype; True for an unknown type.

    `reinterprets` means that the kernel reinterprets bits of one type as another. Unsigned integers and vectors
    of integers count as raw bits.
    """
    element = pointer.element
    if element in ("", RAW_BITS, dtype) or dtype not in ELEMENT_BYTES:
        return True
    is_float = element[0] in "fb"
    if element[0] == "u" and element != "u8":
        return dtype[0] in "fb" or ELEMENT_BYTES[element] == ELEMENT_BYTES[dtype]
    if not is_float and dtype[0] not in "fb":
        return ELEMENT_BYTES[element] == ELEMENT_BYTES[dtype]
    if not is_float:
        same_size = ELEMENT_BYTES[element] == ELEMENT_BYTES[dtype]
        return pointer.is_vector or (same_size and ELEMENT_BYTES[element] == 2) or reinterprets
    return pointer.is_vector and reinterprets


def pointer_mismatches(
    sources: Sequence[Source],
    launch: KernelLaunch,
    tensors: Mapping[str, Tensor],
    macros: Mapping[str, str],
) -> list[PointerMismatch]:
    """Return the pointer parameters of a launch's kernel that receive a tensor of another element type.

    `tensors` are the tensors to compare, by name; `macros` are the compiler's macros. The result is empty if a kernel
    has several definitions, if its head has preprocessor branches, or if the launch passes another number of arguments.
    """
    kernels = [
        (source, declaration)
        for source in sources
        for declaration in declarations(source.text)
        if declaration.is_kernel and declaration.name == plain_kernel(launch.kernel)
    ]
    if len(kernels) != 1:
        return []
    source, kernel = kernels[0]
    parameters = kernel.parameters()
    has_branches = re.search(r"^\s*#", source.text[kernel.start : kernel.tokens[kernel.body].start], re.MULTILINE)
    if len(parameters) != len(launch.args) or has_branches:
        return []
    aliases = _type_aliases(sources, kernel, launch.kernel, macros)
    reinterprets = _has_reinterpretation(sources)
    mismatches = []
    for argument, parameter in zip(launch.args, parameters, strict=True):
        if isinstance(argument, str) and argument in tensors and (pointer := pointer_type(parameter, aliases)):
            dtype = tensors[argument].dtype
            if not pointer_accepts(pointer, dtype, reinterprets):
                line = source.text.count("\n", 0, parameter[0].start) + 1
                name = _parameter_name(parameter)
                location = (str(source.path), line)
                mismatches.append(PointerMismatch(launch.kernel, name, pointer.written, argument, dtype, *location))
    return mismatches


def pointer_type(parameter: Sequence[Token], aliases: Mapping[str, Sequence[str]]) -> PointerType | None:
    """Return the type that a parameter points to; None if it is no plain pointer. `names` are type aliases."""
    token_texts = [token.text for token in parameter]
    token_texts = token_texts[: token_texts.index("=")] if "=" in token_texts else token_texts
    end = next((i for i, word in enumerate(token_texts) if word in ("*", "[")), -1)
    if end < 0 or token_texts.count("*") > 1 or "(" in token_texts or "&" in token_texts:
        return None
    base = token_texts[:end] if token_texts[end] == "*" else token_texts[: end - 1]
    return _resolve_aliases([word for word in base if word not in _QUALIFIERS], aliases)


def dtype_of(written: str) -> str:
    """Return the dtype of a C type, or of the components of a vector type; "" for any other type."""
    name = written.removeprefix("std::")
    vector = _VECTOR.fullmatch(name)
    if vector is None or vector[3]:
        return C_TYPES.get(vector[3] if vector else name, "")
    scalar = vector[1].replace("longlong", "long long")
    return C_TYPES[f"unsigned {scalar[1:]}" if scalar[0] == "u" else scalar]


def _resolve_aliases(type_words: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> PointerType | None:
    """Return a type with its aliases replaced; None if an alias is a pointer."""
    for _ in range(MAX_ALIAS_DEPTH):
        text = " ".join(type_words).replace(" :: ", "::")
        if text == "void":
            return PointerType(text, RAW_BITS)
        if element := dtype_of(text):
            vector = _VECTOR.fullmatch(text)
            element = "u8" if element == "bool" else RAW_BITS if element in ("i8", "u8") else element
            return PointerType(text, element, vector is not None and vector[2] != "1")
        if not any(word in aliases for word in type_words):
            return PointerType(text, "")
        type_words = [
            type_word for word in type_words for type_word in aliases.get(word, (word,)) if type_word not in _QUALIFIERS
        ]
        if "*" in type_words:
            return None
    return PointerType(" ".join(type_words), "")


def _parameter_name(parameter: Sequence[Token]) -> str:
    token_texts = [token.text for token in parameter]
    token_texts = token_texts[: token_texts.index("=")] if "=" in token_texts else token_texts
    token_texts = token_texts[: token_texts.index("[")] if "[" in token_texts else token_texts
    return next((word for word in reversed(token_texts) if re.fullmatch(r"[A-Za-z_]\w*", word)), "")


def _type_aliases(
    sources: Sequence[Source], kernel: Declaration, name_expression: str, macros: Mapping[str, str]
) -> dict[str, Sequence[str]]:
    """Return the words that each type alias stands for: typedefs, `using`, macros and template parameters.

    A name with two meanings, for example in two preprocessor branches, is omitted.
    """
    meanings: dict[str, set[tuple[str, ...]]] = {}
    for source in sources:
        for declaration in declarations(source.text):
            if alias := _alias_definition(declaration):
                meanings.setdefault(alias[0], set()).add(alias[1])
    aliases: dict[str, Sequence[str]] = {name: texts.pop() for name, texts in meanings.items() if len(texts) == 1}
    aliases |= {name: tuple(_token_texts(value)) for name, value in macros.items()}
    return aliases | _template_arguments(kernel, name_expression)


def _alias_definition(declaration: Declaration) -> tuple[str, tuple[str, ...]] | None:
    """Return the alias that a declaration defines, and the words of its type; None if the declaration defines none."""
    texts = [token.text for token in declaration.tokens if token.text != ";"]
    if declaration.kind == "directive":
        match = re.match(r"#\s*define\s+(\w+)[ \t]+([^(\n]*)$", texts[0].split("//")[0].rstrip())
        return (match[1], tuple(_token_texts(match[2]))) if match else None
    if len(texts) > 2 and texts[0] == "typedef" and re.fullmatch(r"\w+", texts[-1]) and "{" not in texts:
        return texts[-1], tuple(texts[1:-1])
    if len(texts) > 3 and texts[0] == "using" and texts[2] == "=":
        return texts[1], tuple(texts[3:])
    return None


def _token_texts(text: str) -> list[str]:
    return [token.text for token in tokens(text)]


def _template_arguments(kernel: Declaration, name_expression: str) -> dict[str, Sequence[str]]:
    """Return the types of a kernel's template parameters, from a name such as `scale<float, 4>` or the defaults."""
    if not kernel.is_template:
        return {}
    head_tokens = list(kernel.tokens)
    end = next(
        (i for i, t in enumerate(head_tokens) if t.text == ">" and _bracket_depth(head_tokens[1 : i + 1]) == 0), 0
    )
    arguments = [[token.text for token in parameter] for parameter in _template_argument_tokens(name_expression)]
    types_by_parameter: dict[str, Sequence[str]] = {}
    for index, parameter in enumerate(split(tuple(head_tokens[2:end]), ",")):
        texts = [token.text for token in parameter]
        if texts[:1] not in (["typename"], ["class"]) or len(texts) < 2:
            continue
        default = texts[texts.index("=") + 1 :] if "=" in texts else []
        if argument_words := arguments[index] if index < len(arguments) else default:
            types_by_parameter[texts[1]] = argument_words
        else:
            # The words keep the name from being taken for a type of the same name.
            types_by_parameter[texts[1]] = (f"template parameter {texts[1]}",)
    return types_by_parameter


def _template_argument_tokens(name_expression: str) -> list[tuple[Token, ...]]:
    """Return the template arguments of a name expression."""
    opened = name_expression.find("<")
    return split(tuple(tokens(name_expression[opened + 1 : name_expression.rfind(">")])), ",") if opened >= 0 else []


def _bracket_depth(code: Sequence[Token]) -> int:
    return sum((token.text == "<") - (token.text == ">") for token in code)


def _has_reinterpretation(sources: Sequence[Source]) -> bool:
    """Return whether device code reinterprets bits by a function or by a cast of a pointer."""
    for source in sources:
        for declaration in declarations(source.text):
            texts = (
                [token.text for token in declaration.tokens]
                if declaration.is_device and declaration.kind == "function"
                else []
            )
            if any(_REINTERPRETS.fullmatch(text) for text in texts):
                return True
            if any(a == "*" and b == ")" for a, b in itertools.pairwise(texts)):
                return True
    return False
