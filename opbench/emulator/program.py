"""Load a compiled module, check launches against a GPU's limits, bind them to buffers and run them."""

from __future__ import annotations

import ctypes
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np

from opbench.backend.base import Buffer, KernelResources, TraceOptions
from opbench.emulator.abi import MAX_COOPERATIVE, MAX_SAMPLES, MAX_THREADS, LaunchArguments, UInt3
from opbench.emulator.buffer import CpuArray
from opbench.emulator.build import constant_symbol, constants_of, entry_symbol
from opbench.emulator.elf import SharedArray, imported_symbols, module_variables, shared_arrays, symbol_offset
from opbench.emulator.findings import LaunchedKernel, LaunchLog
from opbench.emulator.library import Runtime, block_order, thread_order
from opbench.emulator.refusals import is_interpreted, refuse_static_shared, thread_bound, waits_in_loops
from opbench.emulator.tensor_map import native_map
from opbench.emulator.texture import native_texture
from opbench.emulator.tracing import Tracing
from opbench.errors import LaunchError, UsageError, unknown_name, with_location
from opbench.kernels.launch import BuildRequest, Dim3, KernelLaunch
from opbench.kernels.scalar import Argument, BufferAddress, Scalar, Struct

MAX_BLOCK: Dim3 = (1024, 1024, 64)
MAX_GRID: Dim3 = (2**31 - 1, 65535, 65535)
MAX_SHARED_BYTES = 227 << 10
PARTIAL_BARRIERS = frozenset({"opb_mbarrier_over", "opb_named_barrier", "opb_cluster_wait", "opb_trace_fence"})
"""Runtime functions with which a module synchronises a part of a block's threads."""
BLOCK_MILLISECONDS = 50
"""Time limit in milliseconds of one sampled block; by then its first threads have executed most of their code."""
ArgumentMemory = ctypes.c_uint64 | ctypes.Array[ctypes.c_char]
"""The memory of one kernel argument."""
TYPE_NAME_BY_LETTER = {
    "p": "pointer", "i": "int", "f": "float", "l": "8-byte integer", "d": "double", "?": "struct", "b": "bool",
    "c": "1-byte integer", "s": "2-byte integer",
}  # fmt: skip
LETTER_BY_TYPE = {
    "bool": "b", "i8": "c", "u8": "c", "i16": "s", "u16": "s", "i32": "i", "u32": "i", "i64": "l", "u64": "l",
    "f16": "?", "bf16": "?", "f32": "f", "f64": "d",
}  # fmt: skip
"""The letter in a signature by the type of a scalar."""
CONVERTED_TYPES = {"i": {"l": "i64", "b": "bool", "s": "i16", "c": "i8"}, "f": {"d": "f64"}}
"""Types to which an untyped integer ("i") or float ("f") of a launch is converted, by the parameter's letter."""
TYPE_BY_LETTER = {letter: name for name, letter in LETTER_BY_TYPE.items()} | {
    "l": "i64",
    "i": "i32",
    "c": "i8",
    "s": "i16",
}


TOUCH_SYMBOL = "opb_touch_shared"
INTERNAL_PREFIXES = ("opb_", "__", "completed.")
"""Prefixes of the names of variables that belong to the runtime or the compiler."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of a module: its address, and a letter (`TYPE_NAME_BY_LETTER`) per parameter."""

    name: str
    entry: int
    signature: str
    sizes: Sequence[int]
    """The bytes of each parameter."""
    writable: Sequence[bool]
    """Whether each parameter is a pointer to memory that is not const."""

    def may_write(self, launch: KernelLaunch) -> Iterator[str]:
        """Yield the buffers that a launch passes to pointers without const."""
        for argument, writable in zip(launch.args, self.writable, strict=True):
            if writable and isinstance(argument, str):
                yield argument
            elif writable and isinstance(argument, BufferAddress):
                yield from argument.names()


class CpuProgram:
    """A compiled module that is loaded into this process."""

    machine_code_sha256 = ""
    uses_device_heap = False

    def __init__(self, path: Path, request: BuildRequest, runtime: Runtime, log: LaunchLog, workers: int) -> None:
        self.resources: Mapping[str, KernelResources] = {}
        self._request = request
        self._path = path
        self._runtime = runtime
        self._log = log
        self._workers = workers
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as problem:
            raise LaunchError(
                f"{request.source}: the compiled module cannot be loaded: {problem}; delete {path}, then run the "
                "command again",
                kind="module-not-loaded",
                subject=path,
            ) from None
        self._touch = _address(self._library, TOUCH_SYMBOL)
        self._dynamic = _address(self._library, "opb_dynamic_shared")
        self._constants = {name: self._constant(index) for index, name in enumerate(request.constants)}
        self._kernels = {name: self._kernel(index, name) for index, name in enumerate(request.kernels)}

    def bind(self, launches: Sequence[KernelLaunch], buffers: Mapping[str, Buffer]) -> Callable[[], None]:
        """Return a callable that runs all launches in order; raise LaunchError for a launch that a GPU would refuse."""
        memory = {name: buffer for name, buffer in buffers.items() if isinstance(buffer, CpuArray)}
        bound_launches = [self._bind_launch(launch, memory) for launch in launches]
        arrays = list(memory.values())
        run_numbers = itertools.count()

        def run() -> None:
            self._log.buffers = arrays
            run_number = next(run_numbers)
            for run_launch in bound_launches:
                if not run_launch(run_number):
                    return
            for buffer in arrays:
                buffer.initialised = True

        return run

    def variables(self) -> dict[str, Buffer]:
        """Return the module's `__device__` and `__constant__` variables by name, as byte arrays without a copy."""
        base_address = self._touch - symbol_offset(self._path, TOUCH_SYMBOL)
        return {
            name: CpuArray(name, (location.bytes,), "u8", _memory(base_address + location.offset, location.bytes))
            for name, location in variable_locations(self._path).items()
        }

    def trace(
        self,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        tracing: Tracing,
        sampled: bool = False,
        skip_blocks: int = 0,
        options: TraceOptions = TraceOptions(),  # noqa: B008 (frozen)
    ) -> bool:
        """Run all launches of a traced module in order and collect counts; return False if one was abandoned.

        `sampled` runs only the first, the last and some random blocks of each launch, each for a limited time. Bit n
        of `skip_blocks` excludes the n-th of these blocks.
        """
        memory = {name: buffer for name, buffer in buffers.items() if isinstance(buffer, CpuArray)}
        self._log.buffers = list(memory.values())
        constants = set(json.loads(constants_of(self._path).read_text()))
        variables = [
            replace(variable, constant=variable.name in constants) for variable in module_variables(self._path)
        ]
        tracing.use_module(shared_arrays(self._path), variables)
        for launch in launches:
            if not launch.kernel:
                self._bind_fill(launch, memory)()
                if launch.zero:
                    tracing.mark_initialised(launch.zero)
                continue
            bound = self._bind_arguments(launch, memory)
            native = bound.prepare_run(0)
            # One worker: the findings and their order must not depend on the machine's load.
            native.workers, native.trace = 1, tracing.address
            native.undefined_line, native.undefined_fill = options.undefined_line, options.undefined_fill
            if sampled:
                _choose_sample(native, launch, skip_blocks)
                native.block_milliseconds = BLOCK_MILLISECONDS * (6 if is_interpreted(self._request) else 1)
                if not native.sample_count:
                    continue
            for name in memory.keys() & set(self._kernels[launch.kernel].may_write(launch)):
                tracing.mark_writable(name)
            tracing.use_caches(launch)
            completed = self._runtime.launch(native)
            tracing.unfinished_blocks |= native.unfinished
            tracing.gather(launch, self._path)
            if not completed:
                return False
        for buffer in memory.values():
            buffer.initialised = True
        return True

    def _kernel(self, index: int, name: str) -> Kernel:
        """Read the address, signature and parameter sizes of the request's kernel with this index."""
        symbol = entry_symbol(index)
        signature = getattr(self._library, f"{symbol}_signature")
        signature.restype = ctypes.c_char_p
        letters = signature().decode()
        sizes = getattr(self._library, f"{symbol}_sizes")
        sizes.restype = ctypes.POINTER(ctypes.c_uint)
        writable = tuple(letter == "p" for letter in letters)
        address = _address(self._library, symbol)
        return Kernel(name, address, letters.replace("r", "p"), tuple(sizes()[: len(letters)]), writable)

    def _bind_launch(self, launch: KernelLaunch, buffers: Mapping[str, CpuArray]) -> Callable[[int], bool]:
        """Return a callable that runs one launch; errors have the launch's location.

        The callable takes the number of the run, and returns False if the launch was abandoned.
        """
        with with_location(launch.location):
            return self._bind_kernel_or_fill(launch, buffers)

    def _bind_kernel_or_fill(self, launch: KernelLaunch, buffers: Mapping[str, CpuArray]) -> Callable[[int], bool]:
        """Return a callable that runs a kernel or a fill; it takes the number of the run and returns whether it
        completed.
        """
        if not launch.kernel:
            fill = self._bind_fill(launch, buffers)

            def filled(number: int) -> bool:
                fill()
                return True

            return filled
        bound = self._bind_arguments(launch, buffers)
        return lambda number: self._runtime.launch(bound.prepare_run(number))

    def _constant(self, index: int) -> tuple[int, int]:
        """Return the address and the size in bytes of the `__constant__` variable with this index in the request."""
        address = getattr(self._library, constant_symbol(index))
        size = getattr(self._library, f"{constant_symbol(index)}_bytes")
        address.restype, size.restype = ctypes.c_void_p, ctypes.c_uint64
        return int(address()), int(size())

    def _bind_fill(self, launch: KernelLaunch, buffers: Mapping[str, CpuArray]) -> Callable[[], None]:
        """Return a callable that fills a buffer or writes a constant, for a launch without a kernel."""
        if launch.zero:
            target, value = _buffer(buffers, launch.zero, "zero"), launch.value
            return (lambda: target.fill(value)) if value else target.clear
        address, size = self._constants[launch.constant]
        source = _buffer(buffers, launch.tensor, "constants") if launch.tensor else None
        given_bytes = source.bytes if source else len(launch.content)
        if given_bytes > size:
            raise LaunchError(
                f"constants.{launch.constant}: {given_bytes} bytes are passed, but the variable has {size}; pass at "
                "most as many numbers as the variable has elements, in its type",
                kind="constant-too-large",
            )
        if source:
            return lambda: _copy(address, source.address, given_bytes)
        return lambda: _copy(address, launch.content, given_bytes)

    def _bind_arguments(self, launch: KernelLaunch, buffers: Mapping[str, CpuArray]) -> BoundLaunch:
        """Check a launch and return it bound to its kernel and buffers; raise LaunchError if a GPU would refuse it."""
        kernel = self._kernels.get(launch.kernel)
        if kernel is None:
            raise LaunchError(unknown_name("kernel", launch.kernel, self._kernels))
        check_limits(launch, thread_bound(self._request, launch.kernel))
        refuse_static_shared(launch, shared_arrays(self._path), MAX_SHARED_BYTES)
        _check_arguments(launch, kernel)
        typed = (
            _with_parameter_type(a, letter, launch) for a, letter in zip(launch.args, kernel.signature, strict=True)
        )
        return self._fill_launch_structure(
            launch, kernel, [_argument_memory(argument, launch, buffers) for argument in typed]
        )

    def _fill_launch_structure(self, launch: KernelLaunch, kernel: Kernel, values: list[ArgumentMemory]) -> BoundLaunch:
        """Return a bound launch with the runtime's structure filled from a checked launch."""
        native = LaunchArguments()
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        native.entry = kernel.entry
        native.arguments = ctypes.addressof(pointers)
        native.touch_shared = self._touch
        native.dynamic_shared = self._dynamic
        native.grid = UInt3(*launch.grid)
        native.block = UInt3(*launch.block)
        # The blocks of a cooperative launch may wait for each other, so they run as one cluster.
        native.cluster = UInt3(*(launch.grid if launch.cooperative else launch.cluster))
        native.cooperative = launch.cooperative
        native.partial_barriers = bool(imported_symbols(self._path) & PARTIAL_BARRIERS)
        native.programmatic = launch.programmatic
        native.shared_bytes = launch.shared_bytes
        native.tag = self._log.register(
            LaunchedKernel(kernel.name, self._path, self._request.source, self._request.macros)
        )
        native.spins = waits_in_loops(self._request)
        return BoundLaunch(native, launch.grid, self._workers, [pointers, *values])


def variable_locations(module: Path) -> dict[str, SharedArray]:
    """Return the locations of a module's `__device__` and `__constant__` variables by unique names."""
    result: dict[str, SharedArray] = {}
    for location in module_variables(module):
        if not location.name.startswith(INTERNAL_PREFIXES):
            result[location.name if location.name not in result else f"{location.name}@{location.offset}"] = location
    return result


def _choose_sample(native: LaunchArguments, launch: KernelLaunch, skip_blocks: int) -> None:
    """Choose the clusters that a sampled launch runs: the first, the last and some random ones."""
    cluster_count = prod(launch.grid) // prod(launch.cluster)
    rng = random.Random(cluster_count)
    fixed_positions = {0, 1, cluster_count // 2, cluster_count - 2, cluster_count - 1}
    sampled = sorted(
        {p for p in fixed_positions if 0 <= p < cluster_count}
        | {rng.randrange(cluster_count) for _ in range(MAX_SAMPLES - 6)}
    )
    sampled = [position for number, position in enumerate(sampled) if not skip_blocks >> number & 1]
    native.sample_count = len(sampled)
    native.samples[: len(sampled)] = sampled


@dataclass
class BoundLaunch:
    """A launch in the runtime's structure, with the memory that the structure points to (`kept_alive`)."""

    native: LaunchArguments
    grid: Dim3
    workers: int
    kept_alive: list[object] = field(default_factory=list)

    def prepare_run(self, number: int) -> LaunchArguments:
        """Return the launch's structure for run `number`; each run has its own order of threads."""
        self.native.order_multiplier, self.native.order_offset = block_order(self.grid)
        self.native.seed = thread_order(number)
        self.native.workers = self.workers
        return self.native


def check_limits(launch: KernelLaunch, launch_bound: int | None = None) -> None:
    """Raise LaunchError for a launch that a GPU refuses; `launch_bound` is the thread limit of __launch_bounds__, if
    any.
    """
    for text, subject, value, allowed in _exceeded_limits(launch, launch_bound):
        message = f"kernel {launch.kernel}: {text}"
        raise LaunchError(message, kind="launch-limit", subject=subject, value=value, allowed=allowed)


def _exceeded_limits(launch: KernelLaunch, launch_bound: int | None) -> Iterator[tuple[str, str, object, object]]:
    """Yield each limit that a launch exceeds: a message, the field of the launch, its value and the allowed value."""
    threads = prod(launch.block)
    too_large = f"a block of {threads} threads is too large"
    if min(launch.block) < 1:
        text = f"a block of {_dimensions_text(launch.block)} threads is not allowed; use at least 1 per dimension"
        yield text, "block", launch.block, 1
    elif threads > MAX_THREADS:
        yield f"{too_large}; use at most {MAX_THREADS} threads", "block", threads, MAX_THREADS
    elif launch_bound is not None and threads > launch_bound:
        remedy = f"use at most {launch_bound} threads, or raise the bound"
        yield f"{too_large} for __launch_bounds__({launch_bound}); {remedy}", "block", threads, launch_bound
    if min(launch.grid) < 1:
        text = f"a grid of {_dimensions_text(launch.grid)} blocks is not allowed; use at least 1 per dimension"
        yield text, "grid", launch.grid, 1
    for name, sizes, limits in (("block", launch.block, MAX_BLOCK), ("grid", launch.grid, MAX_GRID)):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if size > limit:
                yield f"{name}.{axis} = {size} is too large; use at most {limit}", f"{name}.{axis}", size, limit
    if not 0 <= launch.shared_bytes <= MAX_SHARED_BYTES:
        text = f"{launch.shared_bytes} bytes of dynamic shared memory are not allowed; use 0 to {MAX_SHARED_BYTES}"
        yield text, "shared", launch.shared_bytes, MAX_SHARED_BYTES
    if launch.cooperative and (blocks := prod(launch.grid)) > MAX_COOPERATIVE:
        text = f"a cooperative launch of {blocks} blocks is too large; the cpu backend runs at most {MAX_COOPERATIVE}"
        yield text, "cooperative", blocks, MAX_COOPERATIVE
    if fault := launch.fault_of_cluster():
        yield fault, "cluster", launch.cluster, None


def _check_arguments(launch: KernelLaunch, kernel: Kernel) -> None:
    """Raise LaunchError if a launch's arguments differ from its kernel's parameters in number, type or size."""
    if len(launch.args) != len(kernel.signature):
        raise LaunchError(
            f"kernel {kernel.name} takes {len(kernel.signature)} arguments; the launch gives {len(launch.args)}: "
            f"{', '.join(map(str, launch.args))}; write one entry in args for each parameter",
            kind="argument-count",
            subject=kernel.name,
            value=len(launch.args),
            allowed=len(kernel.signature),
        )
    letter_by_name = {**{t.name: "?" for t in launch.tensor_maps}, **{t.name: "l" for t in launch.textures}}
    for position, (argument, parameter_letter) in enumerate(zip(launch.args, kernel.signature, strict=True)):
        given_letter = _letter_of(argument, letter_by_name)
        if (
            given_letter != parameter_letter
            and parameter_letter not in CONVERTED_TYPES.get(given_letter, {})
            and not (isinstance(argument, Scalar) and parameter_letter == "?")
        ):
            suggested_type = ""
            if parameter_letter == "?":
                suggested_type = "f16" if kernel.sizes[position] == 2 else "struct"
            elif "p" not in (given_letter, parameter_letter):
                suggested_type = TYPE_BY_LETTER.get(parameter_letter, "")
            hint = f"write {{ {suggested_type} = … }}" if suggested_type else "pass an argument of that type"
            raise LaunchError(
                f"kernel {kernel.name}: argument {position + 1} ('{argument}') has the type "
                f"{TYPE_NAME_BY_LETTER[given_letter]}, but the kernel's parameter has the type "
                f"{TYPE_NAME_BY_LETTER[parameter_letter]}; {hint}",
                kind="argument-type",
                subject=kernel.name,
                value=(position + 1, TYPE_NAME_BY_LETTER[given_letter]),
                allowed=TYPE_NAME_BY_LETTER[parameter_letter],
            )
        if isinstance(argument, (Scalar, Struct)) and parameter_letter == "?":
            _check_bytes(launch, argument, position, kernel)


def _letter_of(argument: Argument, letter_by_name: Mapping[str, str]) -> str:
    """Return the letter of an argument's type; names in `letter_by_name` are no buffers."""
    match argument:
        case Scalar():
            return LETTER_BY_TYPE[argument.type]
        case BufferAddress():
            return "p"
        case Struct():
            return "?"
        case str():
            return letter_by_name.get(argument, "p")
    return "i" if isinstance(argument, int) else "f"


def _check_bytes(launch: KernelLaunch, argument: Scalar | Struct, position: int, kernel: Kernel) -> None:
    """Raise LaunchError if a structure, or a scalar such as f16 that is a struct in C++, has a wrong size."""
    given_bytes, parameter_bytes = len(_packed_bytes(argument, launch, lambda name: 0)), kernel.sizes[position]
    if given_bytes != parameter_bytes:
        raise LaunchError(
            f"kernel {kernel.name}: argument {position + 1} ('{argument}') has {given_bytes} bytes; the kernel's "
            f"parameter has {parameter_bytes} (pointers 8, int and float 4, each at a multiple of its size); change "
            "the fields or types in args",
            kind="argument-size",
            subject=kernel.name,
            value=(position + 1, given_bytes),
            allowed=parameter_bytes,
        )


def _packed_bytes(argument: Scalar | Struct, launch: KernelLaunch, address_of: Callable[[str], int]) -> bytes:
    """Return the bytes of a scalar or a structure as the kernel receives them; raise LaunchError."""
    try:
        return argument.packed(address_of) if isinstance(argument, Struct) else argument.packed()
    except UsageError as error:
        raise LaunchError(f"kernel {launch.kernel}: {error}", cause=error) from None


def _with_parameter_type(argument: Argument, parameter_letter: str, launch: KernelLaunch) -> Argument:
    """Return an untyped number as a scalar of the parameter's type; other arguments unchanged."""
    if isinstance(argument, (str, Scalar, Struct)):
        return argument
    scalar_type = CONVERTED_TYPES["i" if isinstance(argument, int) else "f"].get(parameter_letter)
    try:
        return Scalar(scalar_type, argument).bound({}) if scalar_type else argument
    except UsageError as error:
        raise LaunchError(f"kernel {launch.kernel}: {error}", cause=error) from None


def _copy(destination: int, source: int | bytes, byte_count: int) -> None:
    """Copy bytes to an address of this process."""
    ctypes.memmove(destination, source, byte_count)


def _argument_memory(argument: Argument, launch: KernelLaunch, buffers: Mapping[str, CpuArray]) -> ArgumentMemory:
    """Return memory with the value of a kernel's argument."""
    if isinstance(argument, Struct):
        packed = _packed_bytes(argument, launch, lambda name: _buffer(buffers, name, launch.kernel).address)
        return ctypes.create_string_buffer(packed, len(packed))
    for tensor in launch.tensor_maps:
        if argument == tensor.name:
            buffer = _buffer(buffers, tensor.tensor, launch.kernel)
            return native_map(tensor, buffer.address, buffer.bytes)
    for texture in launch.textures:
        if argument == texture.name:
            buffer = _buffer(buffers, texture.tensor, launch.kernel)
            return native_texture(texture, buffer.address, buffer.bytes)
    slot = ctypes.c_uint64(0)
    if isinstance(argument, Scalar):
        ctypes.memmove(ctypes.addressof(slot), packed := argument.packed(), len(packed))
    elif isinstance(argument, str):
        slot.value = _buffer(buffers, argument, launch.kernel).address
    elif isinstance(argument, int):
        if not -(2**31) <= argument < 2**31:
            raise LaunchError(
                f"kernel {launch.kernel}: argument {argument} does not fit into a C int; pass its factors as "
                'separate arguments, or give a wider type, such as { i64 = "n" }',
                kind="argument-type",
            )
        slot.value = argument & 0xFFFFFFFF
    else:
        ctypes.memmove(ctypes.addressof(slot), ctypes.addressof(ctypes.c_float(argument)), 4)
    return slot


def _buffer(buffers: Mapping[str, CpuArray], name: str, kernel: str) -> CpuArray:
    """Return a buffer by name; raise LaunchError for an unknown name."""
    if name not in buffers:
        raise LaunchError(unknown_name("buffer", name, buffers, place=f"kernel {kernel}"))
    return buffers[name]


def _address(library: ctypes.CDLL, symbol: str) -> int:
    """Return the address of a library's symbol."""
    return int(ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0)


def _dimensions_text(sizes: Dim3) -> str:
    """Return dimensions as text, such as "8×4×1"."""
    return "×".join(map(str, sizes))


def _memory(address: int, nbytes: int) -> np.ndarray:
    """Return an array over memory of this process, without a copy."""
    result: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return result
