"""The process that runs a PyTorch task: it reads the task's file, changes sizes and computes references.

The task's code never runs in the process that compares results. Messages are JSON and raw arrays, never pickled
objects.
"""

from __future__ import annotations

import ast
import functools
import math
import random
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opbench.kernels.special_inputs import SPECIAL_INPUTS
from opbench.kernels.task_limits import limits_of
from opbench.kernels.torch_task import (
    TaskFacts,
    TaskShapes,
    TaskTensor,
    TorchOperator,
    receive_message,
    send_message,
)
from opbench.records import to_json
from opbench.source.precision import UNIT_ROUNDOFF

if TYPE_CHECKING:
    import torch

Sizes = dict[str, int]
AllSizes = tuple[tuple[str, int], ...]
"""All sizes in a task's file, as a key of caches."""
NamedArrays = list[tuple[str, np.ndarray]]

MIN_LITERAL = 4
"""The smallest number in get_inputs() that is taken for a size; smaller ones are dimensions, strides or bounds."""
FIRST_SIZES = (17, 16, 13, 12, 24, 8, 32, 33, 64)
SMALLER_SIZES = (7, 8, 6, 5, 4, 3, 2, 1)
OTHER_SIZES = (1, 2, 3, 5, 7, 8, 16, 19, 33, 40, 65)
EXAMPLES, TRIES = 5, 60
BASE_COST, MOST_COST = 1.5e5, 6e5
"""Most elements plus FLOPs of the first example, and of every example."""
MAX_EXAMPLE_COST = 2e7
"""Elements plus FLOPs above which a task is refused, because no small problem was found."""
CACHED_MODELS = 32
DTYPE_OF_TORCH = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
INTEGER_TORCH_TYPES = ("int64", "int32", "int16", "int8", "uint8", "bool")
MAX_SPECIAL_ERROR = 8 * UNIT_ROUNDOFF["f32"]
"""Relative error of a float32 run up to which a kind of special inputs has a defined result."""


class BadTask(Exception):
    """The task is not usable as an operator; the message gives the reason."""


def main() -> None:
    """Answer requests until the pipe closes."""
    pipe, path, model = Connection(int(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
    try:
        import torch
    except Exception as error:
        send_message(pipe, {"error": str(error), "kind": "no-torch"}, {})
        return
    torch.set_num_threads(1)
    server: TaskServer | None = None
    while True:
        try:
            request, arrays = receive_message(pipe)
        except EOFError:
            return
        try:
            server = server or TaskServer(path, model)
            header, outputs = server.serve(request, {name: array.copy() for name, array in arrays.items()})
            send_message(pipe, header, dict(outputs))
        except Exception as error:
            line = _line(error, path)
            send_message(pipe, {"error": _message(error), "kind": "task", "line": line}, {})


def _message(error: BaseException) -> str:
    first_line = str(error).strip().split("\n")[0]
    if isinstance(error, BadTask):
        return first_line
    return (
        f"failed: {type(error).__name__}: {first_line}; correct the file at this line, or call the model with its "
        "inputs in python3 to see the traceback"
    )


def _line(error: BaseException, path: Path) -> int:
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return frames[-1] or 1 if frames else getattr(error, "lineno", None) or 1


def constants_of(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Return the numbers in a task's file that may be sizes: module variables, and numbers in get_inputs()."""
    constants: dict[str, list[ast.expr]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
            if isinstance(target, ast.Name):
                if isinstance(value, (ast.Tuple, ast.List)):
                    elements = {f"{target.id}_{index}": element for index, element in enumerate(value.elts)}
                else:
                    elements = {_axis_name(target.id): value}
                constants |= {n: [element] for n, element in elements.items() if _whole_number(element) is not None}
        if isinstance(statement, ast.FunctionDef) and statement.name in ("get_inputs", "get_init_inputs"):
            for node in ast.walk(statement):
                if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= MIN_LITERAL:
                    constants.setdefault(f"size_{node.value}", []).append(node)
    return constants


def _axis_name(name: str) -> str:
    """Return the name of an axis for a variable: its name, changed if it is an attribute of operators."""
    return f"{name}_count" if hasattr(TorchOperator, name) else name


def _whole_number(node: ast.expr) -> int | None:
    """Return the value of an expression for a positive whole number, such as `2048 * 2`; None for others."""
    allowed = (ast.Constant, ast.BinOp, ast.Mult, ast.Add, ast.Sub, ast.FloorDiv, ast.Pow)
    if not all(isinstance(subexpression, allowed) for subexpression in ast.walk(node)):
        return None
    try:
        value = eval(compile(ast.Expression(node), "<size>", "eval"), {"__builtins__": {}})
    except Exception:
        return None
    return value if type(value) is int and value > 0 else None


class BuiltTask:
    """A task's model and example inputs at some sizes; the model's parameters are further inputs."""

    def __init__(self, server: TaskServer, sizes: Mapping[str, int], device: str, seed: int | None) -> None:
        import torch

        context: AbstractContextManager[Any] = torch.device("meta") if device == "meta" else nullcontext()
        with context:
            if seed is not None:
                torch.manual_seed(seed)
            module = server.module(sizes)
            inputs = module["get_inputs"]()
            self.arguments: list[object] = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            self.model, self.state = self._model(module[server.model], module, torch)
            self.declared: list[torch.Tensor] | None = module["get_outputs"]() if "get_outputs" in module else None
            """The outputs that the file declares, which need not be computed to know their shapes."""
        names = _argument_names(self.model, len(self.arguments))
        self.positions = {name: i for i, name in enumerate(names) if isinstance(self.arguments[i], torch.Tensor)}
        self.scalars = {name: int(a) for name, a in zip(names, self.arguments, strict=True) if isinstance(a, int)}
        self.inputs: dict[str, torch.Tensor] = {name: self.arguments[i] for name, i in self.positions.items()}
        self.parameters = {_plain(name): name for name in self.state}
        for input_name, name in self.parameters.items():
            if input_name in self.inputs:
                raise BadTask(f"a parameter and an input of forward() are both called '{name}'; rename the input")
            self.inputs[input_name] = self.state[name]

    @staticmethod
    def _model(model_or_function: Any, module: Mapping[str, Any], torch: Any) -> tuple[Any, dict[str, Any]]:
        if not (isinstance(model_or_function, type) and issubclass(model_or_function, torch.nn.Module)):
            return model_or_function, {}
        arguments = module["get_init_inputs"]() if "get_init_inputs" in module else []
        model = model_or_function(*arguments)
        return model, {name: value.detach() for name, value in model.named_parameters()}

    def run(self, precision: str, values: Mapping[str, np.ndarray] | None = None) -> list[torch.Tensor]:
        """Run the model and return its outputs: computed in "f64" or "f32", or only their shapes ("meta")."""
        import torch

        float_type = {"f64": torch.float64, "f32": torch.float32}.get(precision)
        arguments, state = list(self.arguments), {}
        for name, tensor in self.inputs.items():
            value = tensor if values is None else torch.from_numpy(values[name])
            is_integer = not tensor.dtype.is_floating_point
            value = value.to(tensor.dtype if is_integer or float_type is None else float_type).reshape(tensor.shape)
            if name in self.positions:
                arguments[self.positions[name]] = value
            else:
                state[self.parameters[name]] = value
        previous_dtype = torch.get_default_dtype()
        try:
            torch.set_default_dtype(float_type or previous_dtype)
            with torch.no_grad(), torch.device("meta") if precision == "meta" else computing_in(float_type):
                result = self._call(arguments, state, float_type)
        finally:
            torch.set_default_dtype(previous_dtype)
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        if not outputs or not all(isinstance(output_name, torch.Tensor) for output_name in outputs):
            raise BadTask("returns something other than tensors; return a tensor or a tuple of tensors")
        return outputs

    def _call(self, arguments: list[object], state: dict[str, torch.Tensor], float_type: torch.dtype | None) -> object:
        import copy

        import torch

        if not isinstance(self.model, torch.nn.Module):
            return self.model(*arguments)
        # Layers such as batch norm change their buffers, so each call gets its own copy.
        buffers = {
            n: b.to(float_type) if float_type and b.dtype.is_floating_point else b
            for n, b in self.model.named_buffers()
        }
        return torch.func.functional_call(self.model, {**copy.deepcopy(buffers), **state}, tuple(arguments))


def computing_in(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return a context in which PyTorch computes in `dtype` where a task asks for another floating-point type.

    A reference that casts to float32, or stores its results in bfloat16, is then as exact as any other.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    floats = (torch.float16, torch.bfloat16, torch.float32)
    casts = (torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.float)

    class Computing(TorchFunctionMode):  # type: ignore[misc]  # PyTorch may be missing
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in casts:
                return args[0].to(dtype)
            if function is torch.Tensor.view:  # view(dtype) reads bits
                return function(*args, **(kwargs or {}))
            dtypes = {n: dtype if value in floats else value for n, value in (kwargs or {}).items() if n == "dtype"}
            changed = [dtype if isinstance(value, torch.dtype) and value in floats else value for value in args]
            return function(*changed, **{**(kwargs or {}), **dtypes})

    return Computing()


def _argument_names(function: Any, count: int) -> list[str]:
    import inspect

    import torch

    callee = function.forward if isinstance(function, torch.nn.Module) else function
    names = [p.name for p in inspect.signature(callee).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return [*names, *(f"input_{i}" for i in range(len(names), count))][:count]


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _dtype_name(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name in INTEGER_TORCH_TYPES:
        return "u8" if name in ("bool", "uint8") else "i32"
    if name not in DTYPE_OF_TORCH:
        raise BadTask(
            f"has a tensor of {name}, which opbench does not support; use one of "
            f"{', '.join(DTYPE_OF_TORCH)} or an integer type"
        )
    return DTYPE_OF_TORCH[name]


class TaskServer:
    """Answer requests about one task."""

    def __init__(self, path: Path, model: str) -> None:
        self.path, self.model = path, model
        self.follow: dict[str, str] = {}
        self.source = path.read_text(encoding="utf-8")
        self.original = {
            name: value
            for name, nodes in constants_of(ast.parse(self.source)).items()
            if (value := _whole_number(nodes[0])) is not None
        }
        names = self.module({})
        for needed, kind in ((model, "class or function"), ("get_inputs", "function")):
            if needed not in names:
                defined_names = ", ".join(
                    n for n, v in names.items() if callable(v) and getattr(v, "__module__", "") == "task"
                )
                raise BadTask(
                    f"defines no {kind} '{needed}'; add the {kind}, or name one of those that the file defines: "
                    f"{defined_names}"
                )
        self.meta = functools.lru_cache(256)(self._meta)
        self.built = functools.lru_cache(CACHED_MODELS)(self._built)

    def module(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Execute the task's file with other sizes and return its module variables."""
        tree = ast.parse(self.source, str(self.path))
        new_values = {
            node: sizes[name] for name, nodes in constants_of(tree).items() if name in sizes for node in nodes
        }

        class WithSizes(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> ast.AST:
                if isinstance(node, ast.expr) and node in new_values:
                    return ast.copy_location(ast.Constant(new_values[node]), node)
                return self.generic_visit(node)

        WithSizes().visit(tree)
        names: dict[str, Any] = {"__name__": "task", "__file__": str(self.path)}
        exec(compile(tree, str(self.path), "exec"), names)
        return names

    def serve(self, request: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], NamedArrays]:
        """Handle one request; return the header and the arrays of the answer."""
        sizes = tuple(sorted(request.get("sizes", {}).items()))
        if request["do"] == "describe":
            return to_json(self.describe()), []
        if request["do"] == "shapes":
            return to_json(self.meta(sizes)), []
        if request["do"] == "limits":
            built = BuiltTask(self, dict(sizes), "cpu", 0)
            return {"limits": limits_of(built, dict(_example_inputs(built)), arrays)}, []
        if request["do"] == "draw":
            return {}, _example_inputs(BuiltTask(self, dict(sizes), "cpu", request["seed"]))
        return {}, self.outputs(sizes, request["do"], arrays)

    def outputs(self, sizes: AllSizes, precision: str, arrays: Mapping[str, np.ndarray]) -> NamedArrays:
        """Compute the outputs in "f64" or "f32" and return them by name in float64."""
        outputs = self.built(sizes).run(precision, arrays)
        names = _output_names(len(outputs))
        return [(n, _least_one(o).double().numpy()) for n, o in zip(names, outputs, strict=True)]

    def _built(self, sizes: AllSizes) -> BuiltTask:
        return BuiltTask(self, dict(sizes), "cpu", 0)

    def _meta(self, sizes: AllSizes) -> TaskShapes:
        """Return the shapes of inputs and outputs and the FLOPs at some sizes, without computing the outputs."""
        from torch.utils.flop_counter import FlopCounterMode

        built = BuiltTask(self, dict(sizes), "meta", None)
        with FlopCounterMode(display=False) as counter:
            outputs = built.run("meta") if built.declared is None else built.declared
        names = _output_names(len(outputs))
        return TaskShapes(
            inputs=tuple(_tensor(name, tensor, name in built.parameters) for name, tensor in built.inputs.items()),
            outputs=tuple(_tensor(name, output, False) for name, output in zip(names, outputs, strict=True)),
            flops=int(counter.get_total_flops()),
            scalars=built.scalars,
        )

    def try_meta(self, sizes: Mapping[str, int]) -> TaskShapes | None:
        """Return the shapes at some sizes; None if the task fails."""
        try:
            meta = self.meta(self.sizes(sizes))
        except Exception:
            return None
        return meta if all(min(t.shape) > 0 for t in (*meta.inputs, *meta.outputs)) else None

    def describe(self) -> TaskFacts:
        """Return the task's axes, constants, example sizes and properties, from which an operator is made."""
        original_meta = self.meta(tuple(sorted(self.original.items())))
        shapes = [t.shape for t in original_meta.inputs]
        axes, unchanged = Sizes(), list[str]()
        for name, value in self.original.items():
            changed = self._other_shapes([name])
            if changed is None:
                unchanged.append(name)
            elif changed != shapes:
                axes[name] = value
        for name in unchanged:  # Sizes that must be equal become one axis.
            equal_constants = [
                other_name for other_name in unchanged if self.original[other_name] == self.original[name]
            ]
            if (
                len(equal_constants) > 1
                and equal_constants[0] == name
                and self._other_shapes(equal_constants) not in (None, shapes)
            ):
                axes[name] = self.original[name]
                self.follow |= dict.fromkeys(equal_constants[1:], name)
        examples = self._examples(axes)
        if (cost := _cost(self.try_meta(examples[0]))) > MAX_EXAMPLE_COST:
            raise BadTask(
                f"accepts no small sizes: the smallest problem has {cost:.0f} elements and FLOPs, and at most "
                f"{MAX_EXAMPLE_COST:.0f} are allowed; give the task's sizes names at the top of the file, such as "
                "rows = 64"
            )
        base = self.sizes(examples[0])
        built = self.built(base)
        arrays = dict(_example_inputs(built))
        self._require_repeatable(base, arrays)
        self._require_declared(base, built, arrays)
        own_inputs = self._own_inputs(base, built, arrays)
        normal = self._normals(built, own_inputs, arrays)
        return TaskFacts(
            axes=axes,
            constants={n: v for n, v in self.original.items() if n not in axes and n not in self.follow},
            follow=self.follow,
            examples=tuple(examples),
            own=tuple(own_inputs),
            special=self._special(base, built, normal, own_inputs),
            whole=not own_inputs and all(self._is_whole(self.sizes(example)) for example in examples),
            float32_error=max(self._float32_error(self.sizes(example), own_inputs) for example in examples),
        )

    def sizes(self, axes: Mapping[str, int]) -> AllSizes:
        """Return all sizes in a task's file for a problem: its axes and the constants."""
        followers = {name: axes[axis] for name, axis in self.follow.items() if axis in axes}
        return tuple(sorted({**self.original, **axes, **followers}.items()))

    def _other_shapes(self, names: Sequence[str]) -> list[tuple[int, ...]] | None:
        """Return the input shapes if sizes that were equal get a new value; None if the task rejects that."""
        value = self.original[names[0]]
        for new_value in (value + 1, 2 * value, 3 * value, value // 2 or 1):
            if meta := self.try_meta(dict.fromkeys(names, new_value)):
                return [t.shape for t in meta.inputs]
        return None

    def _smallest_example(self, axes: Sizes) -> Sizes:
        """Return small sizes that the task accepts, made by the reduction of one axis after another."""
        base = dict(axes)
        # A size that must not be smaller than another is reduced in the second round, after the other.
        for goals in (FIRST_SIZES, FIRST_SIZES, SMALLER_SIZES):
            for name in sorted(axes, key=lambda axis: -axes[axis]):
                if goals is FIRST_SIZES and base[name] != axes[name]:
                    continue
                if _cost(self.try_meta(base)) <= BASE_COST and goals is SMALLER_SIZES:
                    break
                for size in goals:
                    if size < base[name] and self.try_meta({**base, name: size}):
                        base[name] = size
                        break
        return base

    def _examples(self, axes: Sizes) -> list[Sizes]:
        rng, base = random.Random(len(self.source)), self._smallest_example(axes)
        examples = [base]
        for _ in range(TRIES if axes else 0):
            candidate = dict(base)
            for name in axes:
                if rng.random() < 0.6:
                    changed = {**candidate, name: rng.choice(OTHER_SIZES)}
                    if _cost(self.try_meta(changed)) <= MOST_COST:
                        candidate = changed
            if candidate not in examples:
                examples.append(candidate)
            if len(examples) == EXAMPLES:
                break
        return examples

    def _require_repeatable(self, sizes: AllSizes, arrays: Mapping[str, np.ndarray]) -> None:
        first_outputs, second_outputs = (self.outputs(sizes, "f64", arrays) for _ in range(2))
        if any(
            not np.array_equal(a, b, equal_nan=True)
            for (_, a), (_, b) in zip(first_outputs, second_outputs, strict=True)
        ):
            raise BadTask(
                "gives different results for the same inputs, as dropout does; "
                "remove the randomness, because a reference must be deterministic"
            )

    def _require_declared(self, sizes: AllSizes, built: BuiltTask, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise BadTask if the outputs differ from those that the file declares, or have NaN."""
        if built.declared is None:
            return
        outputs = self.outputs(sizes, "f64", arrays)
        seen, declared = [list(o.shape) for _, o in outputs], [list(_least_one(o).shape) for o in built.declared]
        if seen != declared:
            raise BadTask(
                f"returns outputs of the shapes {seen}, but get_outputs() declares {declared}; correct get_outputs()"
            )
        if any(np.isnan(array).any() for _, array in outputs):
            raise BadTask(
                "returns NaN for the inputs of get_inputs(), so no result is correct; draw other inputs in get_inputs()"
            )

    def _own_inputs(self, sizes: AllSizes, built: BuiltTask, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Return the inputs for which get_inputs() must be used: integers, and inputs where normals give NaN."""
        own_inputs = [name for name, tensor in built.inputs.items() if not tensor.dtype.is_floating_point]
        example_outputs = self.outputs(sizes, "f64", arrays)
        if not _is_defined_where(example_outputs, example_outputs) or (
            not own_inputs and not _is_finite(example_outputs)
        ):
            return list(built.inputs)
        for name in built.inputs:
            if name not in own_inputs and not _is_defined_where(
                self.outputs(sizes, "f64", {**arrays, name: _normal(arrays[name], 1)}), example_outputs
            ):
                own_inputs.append(name)
        if not _is_defined_where(self.outputs(sizes, "f64", self._normals(built, own_inputs, arrays)), example_outputs):
            return list(built.inputs)
        return own_inputs

    @staticmethod
    def _normals(
        built: BuiltTask, own_inputs: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {n: arrays[n] if n in own_inputs else _normal(arrays[n], index) for index, n in enumerate(built.inputs)}

    def _special(
        self, sizes: AllSizes, built: BuiltTask, normal: Mapping[str, np.ndarray], own_inputs: Sequence[str]
    ) -> dict[str, tuple[str, ...]]:
        """Return the kinds of special inputs on which PyTorch's float32 result is near the float64 one.

        NaN inputs are never among them: a task does not say whether its function is defined for NaN.
        """
        special_inputs: dict[str, tuple[str, ...]] = {}
        is_integer = any(t.dtype in ("i32", "u8") for t in self.meta(sizes).outputs)
        for kind, (_, make) in SPECIAL_INPUTS.items():
            if kind in ("level", "nan") or (is_integer and kind in ("ties", "zeros")):
                continue
            changed: dict[str, np.ndarray] = {}
            for name in built.positions:
                if name in own_inputs or normal[name].ndim == 0:
                    continue
                special = make(normal[name].astype(np.float32), np.random.default_rng(7), "f32").astype(np.float32)
                candidate = {**changed, name: special.astype(np.float64)}
                # A check changes all inputs of a kind at once.
                if self._is_defined(sizes, {**normal, name: candidate[name]}) and self._is_defined(
                    sizes, {**normal, **candidate}
                ):
                    changed = candidate
            for name in changed:
                special_inputs[name] = (*special_inputs.get(name, ()), kind)
        return special_inputs

    def _is_defined(self, sizes: AllSizes, arrays: Mapping[str, np.ndarray]) -> bool:
        with np.errstate(all="ignore"):
            for (_, float64_output), (_, float32_output) in zip(*self._in_both_precisions(sizes, arrays), strict=True):
                is_near = np.abs(float32_output - float64_output) <= MAX_SPECIAL_ERROR * np.abs(float64_output)
                if not np.all(is_near | (float32_output == float64_output)):
                    return False
        return True

    def _in_both_precisions(self, sizes: AllSizes, arrays: Mapping[str, np.ndarray]) -> list[NamedArrays]:
        return [self.outputs(sizes, precision, arrays) for precision in ("f64", "f32")]

    def _is_whole(self, sizes: AllSizes) -> bool:
        """Return whether integer inputs give integer outputs, equal in float32 and float64."""
        rng = np.random.default_rng(3)
        shapes = {name: tuple(tensor.shape) for name, tensor in self.built(sizes).inputs.items()}
        arrays = {name: rng.integers(-8, 9, shape).astype(np.float64) for name, shape in shapes.items()}
        exact, single = self._in_both_precisions(sizes, arrays)
        return all(
            np.array_equal(a, b) and np.array_equal(a, np.rint(a)) for (_, a), (_, b) in zip(exact, single, strict=True)
        )

    def _float32_error(self, sizes: AllSizes, own_inputs: Sequence[str]) -> float:
        """Return the largest error of PyTorch's float32 result, relative to the result and to its root mean square."""
        built = self.built(sizes)
        normal = self._normals(built, own_inputs, dict(_example_inputs(built)))
        worst = 0.0
        for (_, exact), (_, single) in zip(*self._in_both_precisions(sizes, normal), strict=True):
            other = ~np.isinf(exact) | (single != exact)
            sizes_of_results, errors = np.abs(exact[other]), np.abs(single[other] - exact[other])
            scale = np.maximum(sizes_of_results, np.sqrt(np.mean(sizes_of_results**2))) + np.finfo(np.float32).tiny
            worst = max(worst, float(np.max(errors / scale, initial=0.0)))
        return worst


def _cost(shapes: TaskShapes | None) -> float:
    """Return the elements of all tensors plus a quarter of the FLOPs; infinity for sizes that the task rejects."""
    if shapes is None:
        return math.inf
    return sum(math.prod(t.shape) for t in (*shapes.inputs, *shapes.outputs)) + shapes.flops / 4


def _tensor(name: str, tensor: torch.Tensor, parameter: bool) -> TaskTensor:
    return TaskTensor(name, tuple(tensor.shape) or (1,), _dtype_name(tensor), parameter)


def _output_names(count: int) -> list[str]:
    return ["out"] if count == 1 else [f"out_{index}" for index in range(count)]


def _least_one(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with at least one dimension."""
    return tensor.reshape(1) if tensor.ndim == 0 else tensor


def _example_inputs(built: BuiltTask) -> NamedArrays:
    """Return the inputs of get_inputs() as float64, rounded to the dtype that stores them."""
    return [(name, _least_one(tensor).detach().double().contiguous().numpy()) for name, tensor in built.inputs.items()]


def _normal(array: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(array.shape, np.float32).astype(np.float64)


def _is_finite(outputs: NamedArrays) -> bool:
    return all(bool(np.all(np.isfinite(array))) for _, array in outputs)


def _is_defined_where(outputs: NamedArrays, example_outputs: NamedArrays) -> bool:
    """Return whether outputs are finite, or have only infinities that the inputs of get_inputs() also give.

    An empty segment has such a result: the logarithm of a sum of no exponentials is -infinity.
    """
    return all(
        bool(np.all(np.isfinite(array) | (np.isinf(first) & (array == first))))
        for (_, array), (_, first) in zip(outputs, example_outputs, strict=True)
    )


if __name__ == "__main__":
    main()
