"""A case: a variant, a config and a problem; commands select it by its printed name."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from opbench.errors import Reason, UsageError, unknown_name, with_location
from opbench.kernels import expression
from opbench.kernels.launch import BuildRequest, Dim3, KernelLaunch, LaunchOrigin
from opbench.kernels.operator import Operator
from opbench.kernels.scalar import Argument, BufferAddress, Scalar, Struct
from opbench.kernels.setup import Setup, setup_of
from opbench.kernels.tensors import Tensor
from opbench.kernels.tile import Tile
from opbench.kernels.variant import Config, ConstantTemplate, LaunchTemplate, Variant, print_config

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A variant with a config on a problem: the unit that is checked and measured."""

    variant: Variant
    config: Config
    problem: Operator

    @functools.cached_property
    def name(self) -> str:
        """Return the name, such as "matmul/tiled[TILE=16](m=64,n=64,k=64)"."""
        return f"{self.variant.id}{print_config(self.config)}{self.problem}"

    @property
    def precision(self) -> str:
        """Return the precision class for ranking: the variant's, or the storage's if that is not f32."""
        return self.variant.precision if self.problem.storage == "f32" else self.problem.storage

    @property
    def unit(self) -> str:
        """Return the unit whose peak rate limits the case, such as "tf32"; by default the precision class."""
        return self.variant.unit or self.precision

    def flops(self) -> int:
        """Return the number of floating-point operations: from the header if stated there, else from the problem."""
        scope = {**self.problem.scope, **self.config}
        return int(self._value(self.variant.flops, scope, "flops")) if self.variant.flops else self.problem.flops()

    @functools.cached_property
    def tile(self) -> Tile:
        """Return the output tile of a block that the header declares."""
        scope = self._scope(1)
        return Tile(**{key: int(self._value(text, scope, "tile", key)) for key, text in self.variant.tile.items()})

    def unmet_requirement(self) -> Reason | None:
        """Return the first rule of the variant that the problem violates; None if the variant supports it."""
        return self.variant.unmet_requirement(self.problem, self.config)

    def request(self) -> BuildRequest:
        """Return the source, macros and options that compile the case."""
        variant, scope = self.variant, {**self.problem.scope, **self.config}
        defines = variant.defines(scope)
        for name in variant.define.keys() - defines.keys():
            self._value(variant.define[name], {**defines, **scope}, "define", name)  # raises for an unknown name
        macros = tuple(sorted((k, _macro_text(k, v)) for k, v in {**self.config, **defines}.items()))
        constants = tuple(constant.name for constant in variant.constants)
        return BuildRequest(
            variant.path, variant.kernels, macros, variant.compute_capability, variant.include, constants
        )

    def _with_key_location(self, *key: str | int) -> AbstractContextManager[None]:
        """Return a context manager that adds the location of a header key to errors raised within it."""
        return with_location(functools.partial(self.variant.location, *key))

    def _value(self, text: str, scope: Mapping[str, expression.ExpressionValue], *key: str | int) -> Any:
        """Return the value of the expression that the header has under a key."""
        with self._with_key_location(*key):
            return expression.evaluate(text, scope)

    def _scope(self, sm_count: int) -> dict[str, expression.ExpressionValue]:
        """Return the names, with values, that expressions of the case's launches may use."""
        scope: dict[str, expression.ExpressionValue] = {**self.problem.scope, **self.config, "sm_count": sm_count}
        return {**self.variant.defines(scope), **scope}

    def workspace(self, sm_count: int) -> list[Tensor]:
        """Return the workspaces that the variant requires, as tensors."""
        return self._workspace(self._scope(sm_count))

    def _tensors(self, scope: dict[str, expression.ExpressionValue]) -> list[Tensor]:
        """Return all tensors that a launch may name."""
        return [*self.problem.input_tensors(), *self.problem.output_tensors(), *self._workspace(scope)]

    def _workspace(self, scope: dict[str, expression.ExpressionValue]) -> list[Tensor]:
        return [
            Tensor(name, (max(1, int(self._value(text, scope, "workspace", name))),))
            for name, text in self.variant.workspace.items()
        ]

    def launches(self, sm_count: int) -> list[KernelLaunch]:
        """Return the launches with all numbers evaluated; raise UsageError at the header's line of a bad expression."""
        if sm_count not in self._launches:
            self._launches[sm_count] = self._evaluated_launches(sm_count)
        return list(self._launches[sm_count])

    @functools.cached_property
    def _launches(self) -> dict[int, list[KernelLaunch]]:
        """Return the launches by number of multiprocessors; cached, because networks ask several times."""
        return {}

    def _evaluated_launches(self, sm_count: int) -> list[KernelLaunch]:
        scope = self._scope(sm_count)
        try:
            constant_launches = [self._constant(constant, scope) for constant in self.variant.constants]
            launches = [
                *constant_launches,
                *(self._launch(index, template, scope) for index, template in enumerate(self.variant.launch)),
            ]
            setup_of(launches, self.problem.inputs, self.problem.outputs)  # raises for an invalid setup launch
            return launches
        except UsageError as error:
            location = error.location or self.variant.location("launch")
            raise UsageError(f"launch: {error.message}", location, cause=error) from None

    def threads(self) -> int:
        """Return the number of CUDA threads of all launches on a GPU with one multiprocessor."""
        return sum(math.prod((*launch.grid, *launch.block)) for launch in self.launches(1) if launch.kernel)

    @property
    def setup(self) -> Setup:
        """Return the buffers that the setup launches read and write."""
        if not any(template.setup for template in self.variant.launch):
            return Setup()
        return setup_of(self.launches(1), self.problem.inputs, self.problem.outputs)

    def _early_inputs(self, index: int, names: tuple[str, ...]) -> tuple[str, ...]:
        for position, name in enumerate(names):
            if not name.endswith("?") and name not in self.problem.inputs:
                raise UsageError(
                    unknown_name("input", name, self.problem.inputs, place="early"),
                    self.variant.location("launch", index, "early", position),
                )
        return tuple(input_name for name in names if (input_name := name.removesuffix("?")) in self.problem.inputs)

    @property
    def updates(self) -> Mapping[str, str]:
        """Return the outputs that are updated in place, each with its input; raise UsageError if shapes differ."""
        in_place = self.variant.in_place
        if isinstance(in_place, Mapping):
            inputs = {tensor.name: tensor for tensor in self.problem.input_tensors()}
            outputs = {tensor.name: tensor for tensor in self.problem.output_tensors()}
            for output_name, input_name in in_place.items():
                for name, allowed in ((output_name, outputs), (input_name, inputs)):
                    if name not in allowed:
                        location = self.variant.location("in_place", output_name)
                        raise UsageError(unknown_name("tensor", name, allowed, place="in_place"), location)
                output_tensor, input_tensor = outputs[output_name], inputs[input_name]
                if (output_tensor.shape, output_tensor.dtype) != (input_tensor.shape, input_tensor.dtype):
                    raise UsageError(
                        f"in_place: {output_name} is {output_tensor.dtype}{list(output_tensor.shape)}, {input_name} "
                        f"{input_tensor.dtype}{list(input_tensor.shape)}; an in-place output needs the dtype and "
                        "shape of its input; name another input, or remove the entry",
                        self.variant.location("in_place", output_name),
                        kind="other-shape",
                        subject=output_name,
                        value=input_name,
                    )
            return in_place
        if not in_place:
            return {}
        if not self.problem.in_place:
            raise UsageError(
                f"in_place = true is not allowed, because {self.problem.name} declares no output that may use an "
                "input's memory; name the output and the input, for example: "
                'in_place = { out = "x" }',
                self.variant.location("in_place"),
                kind="not-allowed",
                subject="in_place",
            )
        return self.problem.in_place

    def _constant(self, constant: ConstantTemplate, scope: dict[str, expression.ExpressionValue]) -> KernelLaunch:
        tensors = [*self.problem.inputs, *self.variant.workspace]
        key = ("constants", constant.name)
        with self._with_key_location(*key):
            if constant.tensor and constant.tensor not in tensors:
                raise UsageError(unknown_name("tensor", constant.tensor, tensors, place=f"constants.{constant.name}"))
            content = b"".join(value.bound(scope).packed() for value in constant.values)
        return KernelLaunch(
            "", (1, 1, 1), (1, 1, 1), 0, (), constant=constant.name, tensor=constant.tensor, content=content,
            origin=LaunchOrigin(self.variant, key),
        )  # fmt: skip

    def _launch(
        self, index: int, template: LaunchTemplate, scope: dict[str, expression.ExpressionValue]
    ) -> KernelLaunch:
        key = ("launch", index)
        if template.zero:
            return self._fill_launch(key, template, scope)
        args = self._arguments(key, template, scope)
        grid, block, cluster = (
            _dim3([int(self._value(text, scope, *key, side, axis)) for axis, text in enumerate(texts)])
            for side, texts in (
                ("grid", template.grid),
                ("block", template.block),
                ("cluster", template.cluster),
            )
        )
        names = dict.fromkeys(arg for arg in args if isinstance(arg, str))
        map_templates = {t.name: t for t in self.variant.tensor_maps}
        texture_templates = {t.name: t for t in self.variant.textures}
        tensor_maps = [map_templates[name] for name in names if name in map_templates]
        textures = [texture_templates[name] for name in names if name in texture_templates]
        shapes = self._tensors(scope) if tensor_maps or textures else []
        return KernelLaunch(
            kernel=template.kernel,
            grid=grid,
            block=block,
            shared_bytes=int(self._value(template.shared, scope, *key, "shared")),
            args=args,
            cluster=cluster,
            programmatic=bool(self._value(template.programmatic, scope, *key, "programmatic")),
            cooperative=template.cooperative,
            early=self._early_inputs(index, template.early),
            setup=template.setup,
            tensor_maps=tuple(
                self._describe_at(("tensor_maps", t.name), functools.partial(t.evaluated, scope, shapes))
                for t in tensor_maps
            ),
            textures=tuple(
                self._describe_at(
                    ("surfaces" if t.is_surface else "textures", t.name), functools.partial(t.evaluated, scope, shapes)
                )
                for t in textures
            ),
            origin=LaunchOrigin(self.variant, key),
        )

    def _fill_launch(
        self, key: tuple[str, int], template: LaunchTemplate, scope: dict[str, expression.ExpressionValue]
    ) -> KernelLaunch:
        """Return the launch that fills a buffer with a value."""
        with self._with_key_location(*key):
            if template.zero not in self._buffers:
                raise UsageError(unknown_name("buffer", template.zero, self._buffers, place="zero"))
            value = float(Scalar("f64", template.value).bound(scope).value)
        return KernelLaunch(
            "", (1, 1, 1), (1, 1, 1), 0, (), zero=template.zero, value=value, origin=LaunchOrigin(self.variant, key)
        )

    @property
    def _buffers(self) -> set[str]:
        """Return the names of the buffers that a launch may use."""
        return {*self.problem.inputs, *self.problem.outputs, *self.variant.workspace}

    def _arguments(
        self, key: tuple[str, int], template: LaunchTemplate, scope: dict[str, expression.ExpressionValue]
    ) -> tuple[Argument, ...]:
        """Return the arguments of a kernel with all expressions evaluated; optional ones only if the problem has them.

        Without arguments in the header, the kernel receives inputs, outputs, workspaces and the problem's numbers.
        """
        buffers = self._buffers
        updated = self.updates.values()
        default_args = (
            *(name for name in self.problem.inputs if name not in updated),
            *self.problem.outputs,
            *self.variant.workspace,
            *(a for a in self.problem.arguments() if a not in buffers),
        )
        tensor_maps = self.variant.tensor_maps
        # "bias?" passes the bias only if the problem has one; a tensor map of the bias is handled alike.
        present_names = buffers | {t.name for t in tensor_maps if t.tensor in buffers}
        names = {*buffers, *(t.name for t in tensor_maps), *(t.name for t in self.variant.textures)}
        values: list[Argument] = []
        for index, argument in enumerate(default_args if template.args is None else template.args):
            with self._with_key_location(*key, "args", index):
                if isinstance(argument, BufferAddress):
                    raise UsageError(
                        f"an argument that points into '{argument.fields[0]}' is allowed only in a header with "
                        'operator = "none"; pass the whole buffer, and compute the offset in the kernel',
                        kind="part-of-argument",
                        subject=argument.fields[0],
                    )
                if isinstance(argument, Struct):
                    values.append(Struct(tuple(_bind_argument(field, buffers, scope) for field in argument.fields)))
                elif isinstance(argument, Scalar):
                    values.append(argument.bound(scope))
                elif present := _optional_argument(argument, present_names):
                    values.append(_bind_argument(present, names, scope))
        return tuple(values)

    def _describe_at(self, key: tuple[str, str], describe: Callable[[], T]) -> T:
        with self._with_key_location(*key):
            return describe()


def _bind_argument(
    argument: str | float | Scalar, names: Container[str], scope: Mapping[str, expression.ExpressionValue]
) -> str | int | float | Scalar:
    """Return a buffer's name unchanged, or the value of an expression."""
    if isinstance(argument, Scalar):
        return argument.bound(scope)
    return argument if not isinstance(argument, str) or argument in names else expression.evaluate(argument, scope)


def _optional_argument(argument: str, present_names: Container[str]) -> str:
    """Return an argument without its question mark; "" for an optional argument that the problem lacks."""
    name = argument.removesuffix("?")
    return name if name == argument or name in present_names else ""


def _macro_text(name: str, value: expression.ExpressionValue) -> str:
    """Return a value as a macro's text; true and false become 1 and 0."""
    if isinstance(value, str) and not all(word.isidentifier() for word in value.split(" ")):
        raise UsageError(
            f"define.{name} = '{value}' is not allowed; write a whole number, an identifier or words such as "
            "'unsigned short'",
            kind="not-allowed",
            subject=f"define.{name}",
            value=value,
        )
    return value if isinstance(value, str) else str(value + 0)


def _dim3(values: list[int]) -> Dim3:
    x, y, z = (*values, 1, 1, 1)[:3]
    return (x, y, z)


def fitting_cases(variants: Iterable[Variant], problems: Collection[Operator]) -> list[Case]:
    """Return the cases of all configs of the variants on the problems that they accept, ordered by variant."""
    return [
        Case(variant, config, problem)
        for variant in variants
        for problem in problems
        for config in variant.configs
        if variant.unmet_requirement(problem, config) is None
    ]


def is_named(case: str, pattern: str) -> bool:
    """Return whether a pattern matches a case's name: the whole name, its variant, or a glob over either.

    A bracket does not start a character class here, because printed names contain brackets.
    """
    glob, variant = pattern.replace("[", "[[]"), re.split(r"[\[(]", case)[0]
    return pattern in (case, variant) or any(fnmatch.fnmatchcase(name, glob) for name in (case, variant))


def select(cases: Iterable[Case], patterns: Iterable[str], listing: str = "opbench list cases") -> list[Case]:
    """Return the cases that match a pattern, or all without patterns; raise UsageError if a pattern matches none.

    `listing` is the command that lists these cases, for the message.
    """
    cases, patterns = list(cases), list(patterns)
    if not patterns:
        return cases
    selected: set[str] = set()
    for pattern in patterns:
        matches = {c.name for c in cases if is_named(c.name, pattern)}
        if not matches:
            nearest = difflib.get_close_matches(pattern, [c.name for c in cases], n=1)
            suggestion = f"; the nearest is '{nearest[0]}'" if nearest else ""
            raise UsageError(
                f"no case matches --case '{pattern}' among {len(cases)}{suggestion}; list the names of all cases "
                f"with: {listing}",
                kind="no-match",
                subject="--case",
                value=pattern,
            )
        selected |= matches
    return [c for c in cases if c.name in selected]
