"""Find operators and variants by searching folders; there is no registry."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from opbench.errors import Location, UsageError, unknown_name
from opbench.kernels.case_names import CASE_NAME
from opbench.kernels.header import read_variants
from opbench.kernels.task_file import TorchTask, task_of_folder
from opbench.kernels.variant import Variant, print_config, read_config
from opbench.paths import next_command, shipped_folder

if TYPE_CHECKING:  # The import loads NumPy, which listing names does not need.
    from opbench.kernels.case import Case
    from opbench.kernels.operator import Operator

INCLUDE_FOLDER = "include"
ROLE_LINE = re.compile(r'^    role = "(.+)"$', re.MULTILINE)
LAYOUT_HINT = "name a folder with one subfolder per operator that contains .cu and .py files"


class Catalog:
    """All operators and variants in some root folders; each file is read at its first use."""

    def __init__(self, extra_roots: Sequence[str | Path] = ()) -> None:
        for root in extra_roots:
            if not Path(root).is_dir():
                raise UsageError(f"--variants {root}: is not a folder; {LAYOUT_HINT}", kind="no-such-folder")
        self.extra_roots = tuple(Path(root).resolve() for root in extra_roots)
        """The user's extra folders, as absolute paths."""
        self.roots = list({root.resolve(): root for root in (*self.extra_roots, shipped_folder("variants"))}.values())
        self.include = tuple(folder for root in self.roots if (folder := root / INCLUDE_FOLDER).is_dir())
        """Folders in which kernels' headers are searched, the user's first."""
        self._variants_by_operator: dict[str, tuple[Variant, ...]] = {}
        self._variants_by_file: dict[tuple[Path, str], tuple[Variant, ...]] = {}
        self._proposed_headers: dict[Path, str] = {}
        self._operator_of_file: dict[Path, str] = {}
        self._tasks: dict[str, TorchTask] = {}
        self._received_operators: dict[str, type[Operator]] = {}
        for root, root_as_named in zip(self.extra_roots, extra_roots, strict=True):
            self._require_operators(root, root_as_named)

    def _require_operators(self, root: Path, root_as_named: str | Path) -> None:
        """Raise UsageError if a user's folder contains no variants or names no operator."""
        folders_with_variants = [
            f for f in variant_folders(root) if any((*f.glob("*.cu"), *f.glob("*.py"), *f.glob("*.toml")))
        ]
        if not folders_with_variants:
            raise UsageError(f"--variants {root_as_named}: contains no variants; {LAYOUT_HINT}", kind="no-variants")
        operator_names = self.operator_names()
        for folder in folders_with_variants:
            if folder.name not in operator_names:
                error = unknown_name("operator", folder.name, operator_names, next_command("list operators"))
                raise UsageError(
                    f"{folder}: {error}; define a new operator in {folder.name}/operator.py",
                    kind="no-operator",
                    subject=folder,
                )

    @functools.cached_property
    def folders(self) -> dict[str, list[Path]]:
        """Return the folders of each operator, the user's before opbench's."""
        folders_by_operator: dict[str, list[Path]] = {}
        for root in self.roots:
            for folder in variant_folders(root):
                folders_by_operator.setdefault(folder.name, []).append(folder)
        return dict(sorted(folders_by_operator.items()))

    def command(self, text: str, *targets: str | Path, **options: object) -> str:
        """Return a command to type next, with the `--variants` options that this catalog needs."""
        return next_command(text, *targets, variants=self.extra_roots, **options)

    def operator_names(self) -> list[str]:
        """Return the names of all operators with an operator.py."""
        with_operator_file = [
            name for name, folders in self.folders.items() if any((f / "operator.py").exists() for f in folders)
        ]
        task_operators = [name for name in self.folders if name not in with_operator_file and self.task(name)]
        return [*with_operator_file, *task_operators, *(name for name in self._tasks if name not in with_operator_file)]

    def add_task(self, task: TorchTask) -> str:
        """Add the operator of a PyTorch task and return its name; raise UsageError if the name is taken."""
        existing = self._tasks.setdefault(task.name, task)
        if (existing.path, existing.model) != (task.path, task.model):
            raise UsageError(
                f"{existing} and {task} both define the operator {task.name}; rename one of the files",
                kind="duplicate-operator",
                subject=task.name,
            )
        return task.name

    def set_operator(self, path: Path, operator: str) -> None:
        """Set the operator of a file whose header does not name one."""
        self._operator_of_file[path.resolve()] = operator

    def add_operator(self, name: str, operator: type[Operator]) -> None:
        """Add an operator that another process sent."""
        self._received_operators[name] = operator

    def task(self, name: str) -> TorchTask | None:
        """Return the PyTorch task that defines an operator; None for an operator.py."""
        tasks = (task for folder in self.folders.get(name, []) if (task := task_of_folder(folder)))
        return self._tasks.get(name) or next(tasks, None)

    def operator_title(self, name: str) -> str:
        """Return the first line of the operator's docstring, read without importing the file."""
        return docstring(self.operator_file(name))

    def operator_role(self, name: str) -> str:
        """Return the operator's `role`, read without importing the file."""
        match = ROLE_LINE.search(self.operator_file(name).read_text(encoding="utf-8"))
        return match[1] if match else ""

    def operator_file(self, name: str) -> Path:
        for folder in self.folders.get(name, []):
            if (folder / "operator.py").exists():
                return folder / "operator.py"
        if task := self.task(name):
            return task.file
        if Path(name).is_dir():
            raise folder_error(Path(name))
        if Path(name).is_file():
            raise UsageError(
                f"{name}: is not a kernel; name a .cu file, an operator or a variant such as relu/vec4 (list all: "
                f"{self.command('list operators')})",
                kind="not-a-kernel",
                subject=name,
            )
        raise UsageError(unknown_name("operator", name, self.operator_names(), self.command("list operators")))

    def operator(self, name: str) -> type[Operator]:
        """Return the operator's class."""
        if name in self._received_operators:
            return self._received_operators[name]
        file = self.operator_file(name)
        if (task := self.task(name)) and file == task.file:
            from opbench.kernels.torch_task import torch_operator

            return torch_operator(task)
        return load_operator(file, name)

    def variants(self, operator: str) -> list[Variant]:
        """Return all variants of an operator, each after the one it builds on."""
        if operator not in self._variants_by_operator:
            self._variants_by_operator[operator] = tuple(self._variants(operator))
        return list(self._variants_by_operator[operator])

    def choosable_variants(self, operator: str, *, libraries: bool = False) -> list[Variant]:
        """Return the variants that opbench may choose by itself; with `libraries`, also those that call a library.

        Each gives the same bits in every run. A kernel that only updates its output is excluded: the memory of a
        network has no initial value there.
        """
        return [
            variant
            for variant in self.variants(operator)
            if variant.reproducible and (libraries if variant.is_library else not variant.in_place)
        ]

    def _variants(self, operator: str) -> list[Variant]:
        self.operator_file(operator)
        variants_by_name: dict[str, Variant] = {}
        for folder in reversed(self.folders.get(operator, [])):
            for path in sorted((*folder.glob("*.cu"), *folder.glob("*.py"))):
                if path.name == "operator.py" or path.name.startswith("_"):
                    continue
                for variant in self.variants_in(path, operator):
                    _require_other_name(variant, variants_by_name.get(variant.name))
                    variants_by_name[variant.name] = variant
        return ladder_order(list(variants_by_name.values()))

    def variant(self, operator: str, name: str) -> Variant:
        """Return one variant by name; raise UsageError with the nearest existing name."""
        variants = {v.name: v for v in self.variants(operator)}
        if name not in variants:
            hint = self.command("list variants", operator)
            raise UsageError(unknown_name("variant", name, variants, hint, place=operator))
        return variants[name]

    def case(self, name: str, own_variants: Sequence[Variant] = ()) -> Case:
        """Return the case that prints as `name`; a variant of the user's own file precedes one of the same name.

        Raises UsageError with the nearest existing operator, variant, axis or config.
        """
        from opbench.kernels.case import Case

        match = CASE_NAME.match(name)
        if not match:
            operator = re.split(r"[/(\[]", name)[0]
            fault = "is an operator, not a case" if name in self.folders else "is not the name of a case"
            if name.count("(") > name.count(")"):
                fault += ": the closing parenthesis is missing"
            elif "/" in name and "(" not in name:
                fault += ": the problem in parentheses is missing, such as (n=1000)"
            raise UsageError(
                f"'{name}' {fault}; write a name such as matmul/shared_tile[TILE=16](m=64,n=64,k=64); list all cases "
                f"with: {self.command('list cases', *([operator] if operator in self.folders else []))}",
                kind="not-a-case",
            )
        own_variant = {v.id: v for v in own_variants}.get(f"{match['operator']}/{match['variant']}")
        variant = own_variant or self.variant(match["operator"], match["variant"])
        problem = self.operator(match["operator"]).parse(match["problem"])
        for config in variant.configs:
            if not match["config"] or print_config(config) == f"[{match['config']}]":
                return Case(variant, config, problem)
        if variant.searched and (config_values := read_config(match["config"])) in variant.space:
            return Case(variant, {key: config_values[key] for key in variant.tune}, problem)
        configs_text = " ".join(print_config(c) for c in variant.configs)
        raise UsageError(
            f"{variant.id} has no config [{match['config']}]; choose one of its configs: {configs_text}",
            kind="no-such-config",
            subject=variant.id,
            value=match["config"],
            allowed=configs_text,
        )

    def set_proposed_header(self, path: Path, header: str) -> None:
        """Set the header to use for a file that has none."""
        self._proposed_headers[path.resolve()] = header

    def has_proposed_header(self, path: Path) -> bool:
        """Return whether `set_proposed_header` was called for a file."""
        return path.resolve() in self._proposed_headers

    def variants_in(self, path: Path, operator: str = "") -> tuple[Variant, ...]:
        """Return the variants of one file, checked against its operator; cached until the file or a header changes."""
        operator = operator or self._operator_of_file.get(path.resolve(), "")
        cached = self._variants_by_file.get((path, operator), ())
        if not cached or not all(source.is_unchanged for source in cached[0].sources):
            cached = self._variants_by_file[path, operator] = read_variants(
                path, operator, self.include, self._proposed_headers.get(path.resolve(), "")
            )
            if cached[0].torch_task:
                self.add_task(cached[0].torch_task)
            self.operator_file(cached[0].operator)
        return cached

    def own_variants(self, path: Path, operator: str = "") -> tuple[Variant, ...]:
        """Return the variants of a user's file; raise UsageError if another file has a variant of the same name."""
        variants = self.variants_in(path, operator)
        existing = {variant.name: variant for variant in self.variants(variants[0].operator)}
        for variant in variants:
            _require_other_name(variant, existing.get(variant.name))
        return variants

    def variant_file(self, path: Path, operator: str = "", name: str = "") -> Variant:
        """Return one variant of a file: the variant called `name`, or the first if `name` is empty."""
        variants = {v.name: v for v in self.variants_in(path, operator)}
        name = name or next(iter(variants))
        if name not in variants:
            raise UsageError(unknown_name("variant", name, variants, place=str(path)))
        return variants[name]


def _require_other_name(variant: Variant, known_variant: Variant | None) -> None:
    """Raise UsageError if two different variants have the same name, because their results would be mixed."""
    if known_variant is None or known_variant.path.resolve() == variant.path.resolve():
        return
    if known_variant.path.parent == variant.path.parent or known_variant.source_sha256 != variant.source_sha256:
        raise UsageError(
            f"{variant.path}: {known_variant.path} has variant '{variant.id}' already; rename one of the two variants",
            kind="duplicate-variant",
            subject=known_variant.path,
            value=variant.id,
        )


def docstring(path: Path) -> str:
    """Return the first line of a Python file's docstring, without importing the file."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0]


def case_named(name: str, variants: Sequence[str | Path] = ()) -> Case:
    """Return the case that prints as `name`, from the shipped variants and from extra folders."""
    return Catalog(variants).case(name)


def folder_error(folder: Path) -> UsageError:
    """Return the error for a folder where a kernel is expected, with a command for the kernels in it."""
    own_file = next(iter(sorted(folder.glob("*.cu"))), None)
    operator_folder = next((f for f in variant_folders(folder) if any(f.glob("*.cu"))), None)
    if own_file:
        remedy = f"name a .cu file in it: {next_command('check', own_file)}"
    elif operator_folder:
        remedy = f"name an operator of it: {next_command('check', operator_folder.name, variants=[folder])}"
    else:
        remedy = "it contains no .cu file; copy a shipped one: opbench new variant relu/mine"
    return UsageError(f"{folder}: this is a folder, not a kernel; {remedy}", kind="is-a-folder", subject=folder)


def variant_folders(root: Path) -> list[Path]:
    """Return the subfolders that may contain variants: all except `include`, which contains headers."""
    folders = (f for f in root.iterdir() if f.is_dir() and f.name != INCLUDE_FOLDER)
    return sorted(f for f in folders if not f.name.startswith((".", "_")))


def ladder_order(variants: Sequence[Variant]) -> list[Variant]:
    """Sort so that each variant follows the one it builds on; libraries come last."""
    by_name = {v.name: v for v in variants}

    def position(variant: Variant) -> int:
        depth, visited = 0, {variant.name}
        while variant.builds_on in by_name and variant.builds_on not in visited:
            visited.add(variant.builds_on)
            variant = by_name[variant.builds_on]
            depth += 1
        return depth

    return sorted(variants, key=lambda v: (v.is_library, position(v), v.name))


def load_module(path: Path, name: str) -> ModuleType:
    """Import one Python file by path; raise UsageError with file and line for an error in it."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(
            f"{path}: Python cannot import this file; name a file that ends in .py",
            kind="not-a-python-file",
            subject=path,
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = getattr(error, "lineno", None) or _last_line(error, path)
        raise UsageError(
            f"cannot be imported: {type(error).__name__}: {error}; correct the file at this line",
            Location(path, line),
            kind="import-failed",
        ) from error
    return module


def _last_line(error: BaseException, path: Path) -> int:
    line, trace = 1, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@functools.cache
def load_operator(path: Path, name: str) -> type[Operator]:
    """Return the only Operator subclass that a file defines."""
    from opbench.kernels.operator import Operator

    module = load_module(path, f"opbench_operator_{name}")
    classes = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, Operator) and c.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise UsageError(
            f"defines {len(classes)} operators; define exactly one subclass of Operator in this file",
            Location(path, 1),
            kind="not-one-operator",
            subject=path,
            value=len(classes),
            allowed=1,
        )
    for method in ("reference", "examples"):
        if not hasattr(classes[0], method):
            raise UsageError(
                f"{classes[0].__name__} defines no {method}(); add the method, for example as in "
                "variants/relu/operator.py",
                Location(path, 1),
                kind="missing-method",
                subject=classes[0].__name__,
                value=method,
            )
    classes[0].name = name
    return classes[0]
