"""A case's launches as lines of C++: the same launches as the harness makes, with all numbers written out."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opbench.errors import UsageError
from opbench.kernels.case import Case
from opbench.kernels.expression import round_up
from opbench.kernels.launch import Dim3, KernelLaunch
from opbench.kernels.scalar import Argument, Scalar, Struct, element_bytes, with_parameter_type
from opbench.kernels.tensor_map import L2_PROMOTION_BYTES, SWIZZLE_BYTES, TensorMap
from opbench.kernels.tensors import DTYPES, WORKSPACE_ALIGNMENT, Tensor
from opbench.paths import next_command
from opbench.shipping.fixed_text import SupportFunctions
from opbench.shipping.kernel_text import KernelText

CPP_KEYWORDS = frozenset(
    ("new", "delete", "this", "class", "register", "default", "switch", "case", "operator", "union")
)
"""Names of tensors that are keywords in C++."""
TENSOR_MAP_TYPES = {
    "f16": "FLOAT16", "f32": "FLOAT32", "bf16": "BFLOAT16", "tf32": "TFLOAT32",
    "e4m3": "UINT8", "e5m2": "UINT8", "i8": "UINT8", "u8": "UINT8",
}  # fmt: skip
SWIZZLES = dict(zip(SWIZZLE_BYTES, ("NONE", "32B", "64B", "128B"), strict=True))
L2_PROMOTIONS = dict(zip(L2_PROMOTION_BYTES, ("NONE", "L2_64B", "L2_128B", "L2_256B"), strict=True))
C_TYPES = {
    "bool": "bool", "i8": "int8_t", "u8": "uint8_t", "i16": "int16_t", "u16": "uint16_t", "i32": "int",
    "u32": "uint32_t", "i64": "int64_t", "u64": "uint64_t", "f16": "uint16_t", "bf16": "uint16_t", "f32": "float",
    "f64": "double", "e4m3": "uint8_t", "e5m2": "uint8_t",
}  # fmt: skip
"""The C type of each dtype; floating-point types of 16 and of 8 bits are passed as their bits."""


@dataclass(frozen=True)
class StepLines:
    """The C++ lines of some launches of a case, which form the body of a function."""

    lines: tuple[str, ...]
    reads: frozenset[str] = frozenset()
    """The buffers that the launches name."""
    needs: SupportFunctions = SupportFunctions.NOTHING
    """The support functions that the launches call."""


@dataclass(frozen=True)
class LaunchCode:
    """A case's launches in C++, and the memory that they need."""

    case: Case
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    workspace: tuple[Tensor, ...]
    setup_lines: StepLines
    """The setup launches, which fill workspaces from inputs that need not change."""
    other_lines: StepLines
    persistent: tuple[str, ...] = ()
    """Workspaces that the setup launches fill and the other launches read."""
    updates: Mapping[str, str] = field(default_factory=dict)
    """Outputs that start as a copy of an input."""

    @property
    def needs(self) -> SupportFunctions:
        """Return the support functions that the launches call."""
        return self.setup_lines.needs | self.other_lines.needs

    @property
    def workspace_bytes(self) -> int:
        """Return the bytes of all workspaces, each at a multiple of the alignment."""
        return sum(round_up(tensor.nbytes, WORKSPACE_ALIGNMENT) for tensor in self.workspace)


def cpp_name(name: str) -> str:
    """Return a name changed so that it is valid in C++: no punctuation, no keyword, no digit first."""
    identifier = re.sub(r"\W", "_", name)
    return f"{identifier}_" if identifier in CPP_KEYWORDS or identifier[0].isdigit() else identifier


def handle_name(kernel_text: KernelText, kernel: str) -> str:
    """Return the name of the C++ function that returns a kernel's handle."""
    return cpp_name(f"{kernel_text.namespace}__{kernel}".replace("::", "__"))


def launch_code(
    case: Case,
    kernel_text: KernelText,
    sm_count: int,
    parameter_sizes: Mapping[str, Sequence[int]],
    written_inputs: Collection[str] | None = None,
    separate_setup: bool = True,
) -> LaunchCode:
    """Return the launches of a case as C++.

    `parameter_sizes` are the bytes of each kernel's parameters, if the compiler reported them. `written_inputs` are the
    inputs that earlier work on the stream may write; None means all. With `separate_setup`, the setup launches may be
    called separately. Raises UsageError for an argument that a kernel cannot receive.
    """
    launches = case.launches(sm_count)
    if case.variant.textures:
        raise UsageError(
            f"{case.name}: this variant reads textures or surfaces, and opbench ship cannot write their set-up as C++; "
            f"choose a variant without them: {next_command('list variants', case.problem.name)}",
            kind="textures",
            subject=case.name,
        )
    setup_launches = [launch for launch in launches if launch.setup and separate_setup]
    other_launches = [launch for launch in launches if not (launch.setup and separate_setup)]
    if setup_launches and other_launches:
        # The setup may run directly before this launch, so this launch must not start early.
        other_launches[0] = replace(other_launches[0], programmatic=False)
    written_before = set(case.problem.inputs if written_inputs is None else written_inputs)
    setup_launches, other_launches = (
        _wait_for_earlier_writes(setup_launches, written_before),
        _wait_for_earlier_writes(other_launches, written_before),
    )
    tensors = {
        t.name: t for t in (*case.problem.input_tensors(), *case.problem.output_tensors(), *case.workspace(sm_count))
    }

    def step_lines(steps: Sequence[KernelLaunch]) -> StepLines:
        steps_lines = [launch_lines(launch, case, kernel_text, tensors, parameter_sizes) for launch in steps]
        return StepLines(
            tuple(line for step in steps_lines for line in step.lines),
            frozenset(name for step in steps_lines for name in step.reads),
            functools.reduce(operator.or_, (step.needs for step in steps_lines), SupportFunctions.NOTHING),
        )

    return LaunchCode(
        case,
        tuple(case.problem.input_tensors()),
        tuple(case.problem.output_tensors()),
        tuple(case.workspace(sm_count)),
        step_lines(setup_launches),
        step_lines(other_launches),
        case.setup.persistent,
        dict(case.updates),
    )


def _wait_for_earlier_writes(launches: Sequence[KernelLaunch], written_inputs: set[str]) -> list[KernelLaunch]:
    """Return the launches; the first one waits for earlier work on the stream if it reads what that work writes.

    If the first launch starts before earlier work on the stream has ended and reads what that work writes, it waits for
    the end of the work.
    """
    adjusted = list(launches)
    for index, launch in enumerate(adjusted):
        if not launch.programmatic:
            break
        if set(launch.early) & written_inputs:
            adjusted[index] = replace(launch, programmatic=False)
            break
    return adjusted


def launch_lines(
    launch: KernelLaunch,
    case: Case,
    kernel_text: KernelText,
    tensors: Mapping[str, Tensor],
    parameter_sizes: Mapping[str, Sequence[int]],
) -> StepLines:
    """Return the lines of one launch: of a kernel, of the fill of a buffer, or of a copy to constant memory."""
    reads = frozenset(launch.buffers())
    if launch.zero:
        needs = SupportFunctions.FILL if launch.value else SupportFunctions.NOTHING
        return StepLines((f"TRY({_fill_call(launch, tensors[launch.zero])});",), reads, needs)
    if launch.constant:
        return StepLines(tuple(_constant_lines(launch, kernel_text, tensors)), reads)
    tensor_map_lines = [line for tensor in launch.tensor_maps for line in _tensor_map_lines(tensor, tensors)]
    values = ", ".join(
        _argument_texts(launch, case, tensors, parameter_sizes.get(kernel_text.qualified_name(launch.kernel)))
    )
    shape = _launch_shape(launch)
    call = f"TRY(launch({handle_name(kernel_text, launch.kernel)}(), {shape}, stream{', ' if values else ''}{values}));"
    return StepLines(
        (*tensor_map_lines, call), reads, SupportFunctions.MAPS if tensor_map_lines else SupportFunctions.NOTHING
    )


def _launch_shape(launch: KernelLaunch) -> str:
    text = f"grid({_dim3(launch.grid)}).block({_dim3(launch.block)})"
    text += f".shared({launch.shared_bytes})" if launch.shared_bytes else ""
    text += f".cluster({_dim3(launch.cluster)})" if launch.cluster != (1, 1, 1) else ""
    text += ".programmatic()" if launch.programmatic else ""
    return text + (".cooperative()" if launch.cooperative else "")


def _dim3(sizes: Dim3) -> str:
    dimensions = list(sizes)
    while len(dimensions) > 1 and dimensions[-1] == 1:
        dimensions.pop()
    return ", ".join(map(str, dimensions))


def _fill_call(launch: KernelLaunch, tensor: Tensor) -> str:
    if not launch.value:
        return f"cudaMemsetAsync({cpp_name(tensor.name)}, 0, {tensor.nbytes}, stream)"
    bits = element_bytes(DTYPES[tensor.dtype], launch.value)
    if len(bits) == 8 and bits[:4] != bits[4:]:
        raise UsageError(
            f"fill = '{launch.zero}': cudaMemset cannot fill elements of 8 bytes with {launch.value}; fill with 0, or "
            "let a kernel write the value",
            kind="not-allowed",
            subject="fill",
            value=launch.value,
            allowed=0,
        )
    width = min(len(bits), 4)
    pattern = int.from_bytes(bits[:width], "little")
    count = tensor.nbytes // width
    return f"fill<{8 * width}>({cpp_name(tensor.name)}, {pattern:#x}u, {count}, stream) /* {launch.value} */"


def _constant_lines(launch: KernelLaunch, kernel_text: KernelText, tensors: Mapping[str, Tensor]) -> list[str]:
    address = f"{handle_name(kernel_text, launch.constant)}()"
    if launch.tensor:
        tensor = tensors[launch.tensor]
        copy_call = (
            f"cudaMemcpyAsync({address}, {cpp_name(tensor.name)}, {tensor.nbytes}, cudaMemcpyDeviceToDevice, stream)"
        )
        return [f"TRY({copy_call});"]
    name = cpp_name(f"{launch.constant}_content")
    byte_list = ", ".join(str(byte) for byte in launch.content)
    copy_call = f"cudaMemcpyAsync({address}, {name}, sizeof {name}, cudaMemcpyHostToDevice, stream)"
    return [f"static const unsigned char {name}[] = {{{byte_list}}};", f"TRY({copy_call});"]


def _tensor_map_lines(tensor: TensorMap, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the code of a tensor map, which is encoded at each call because it contains an address."""
    tensor.check(0, tensors[tensor.tensor].nbytes)
    address = f"at({cpp_name(tensor.tensor)}, {tensor.offset})" if tensor.offset else cpp_name(tensor.tensor)
    first_arguments = (
        f"&{cpp_name(tensor.name)}, CU_TENSOR_MAP_DATA_TYPE_{TENSOR_MAP_TYPES[tensor.type]}, {address}, "
        f"{_braced_list(tensor.dims)}, {_braced_list(tensor.strides)}"
    )
    last_arguments = (
        f"{_braced_list(tensor.element_strides)}, CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[tensor.swizzle]}, "
        f"CU_TENSOR_MAP_L2_PROMOTION_{L2_PROMOTIONS[tensor.l2]}"
    )
    if tensor.is_im2col:
        im2col_arguments = (
            f"{_braced_list(tensor.lower)}, {_braced_list(tensor.upper)}, {tensor.channels}, {tensor.pixels}"
        )
        call = f"im2col_map({first_arguments}, {im2col_arguments}, {last_arguments})"
    else:
        call = f"tiled_map({first_arguments}, {_braced_list(tensor.box)}, {last_arguments})"
    return [f"CUtensorMap {cpp_name(tensor.name)};", f"TRY({call});"]


def _braced_list(integers: Sequence[int]) -> str:
    return f"{{{', '.join(map(str, integers))}}}"


def _argument_texts(
    launch: KernelLaunch, case: Case, tensors: Mapping[str, Tensor], parameter_sizes: Sequence[int] | None
) -> list[str]:
    """Return the C++ text of each argument of a launch; a number has the type of the kernel's parameter."""
    if parameter_sizes is not None and len(parameter_sizes) != len(launch.args):
        raise UsageError(
            f"{case.variant.path}: kernel {launch.kernel} takes {len(parameter_sizes)} arguments, but args of its "
            f"launch in the header names {len(launch.args)}; name {len(parameter_sizes)} arguments in args",
            kind="other-length",
            subject=launch.kernel,
            value=len(launch.args),
            allowed=len(parameter_sizes),
        )
    widths = parameter_sizes or [0] * len(launch.args)
    return [_argument_text(arg, width) for arg, width in zip(launch.args, widths, strict=True)]


def _argument_text(arg: Argument, width: int) -> str:
    if isinstance(arg, Struct):
        return _structure_text(arg)
    if isinstance(arg, str):
        return cpp_name(arg)
    if not isinstance(arg, Scalar):
        arg = with_parameter_type(arg, width)
    if isinstance(arg, Scalar):
        if arg.type in ("f16", "bf16"):
            bits = int.from_bytes(arg.packed(), "little")
            return f"uint16_t({bits:#x} /* {arg.value} */)"
        value = str(bool(arg.value)).lower() if arg.type == "bool" else _number_text(arg.value)
        return f"{C_TYPES[arg.type]}({value})"
    return f"{_number_text(arg)}f" if isinstance(arg, float) else str(int(arg))


def _structure_text(structure: Struct) -> str:
    """Return the C++ text of a structure of numbers of one type, passed as an array with the same memory layout."""
    fields = [_with_type(field) for field in structure.fields if not isinstance(field, str)]
    types = {field.type for field in fields}
    if len(fields) < len(structure.fields) or len(types) != 1 or types <= {"f16", "bf16"}:
        raise UsageError(
            f"argument {structure}: opbench ship can pass a structure only if all its fields are numbers of one type "
            "other than f16 and bf16; pass the fields as separate arguments of the kernel",
            kind="structure",
            subject=structure,
        )
    (type_name,) = types
    return (
        f"Fields<{C_TYPES[type_name]}, {len(fields)}>{{{{{', '.join(_argument_text(field, 0) for field in fields)}}}}}"
    )


def _with_type(field: float | Scalar) -> Scalar:
    """Return a field of a structure with its type: a plain number is an `int` or a `float`, as in Struct."""
    return field if isinstance(field, Scalar) else Scalar("f32" if isinstance(field, float) else "i32", field)


def _number_text(value: str | float) -> str:
    assert not isinstance(value, str)
    if math.isnan(value):
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if float(value) > 0 else "-INFINITY"
    return repr(value)
