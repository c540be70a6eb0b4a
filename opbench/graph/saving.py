"""Save and load a network as two files: the structure as JSON, the weights as safetensors.

Format history (the key "format"): 1, the first.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from opbench.errors import UsageError, unknown_name
from opbench.graph.graph import Graph
from opbench.graph.values import LAYOUTS, Node, Value
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import DTYPES
from opbench.paths import write_file
from opbench.records import read_record

FORMAT = "opbench network 1"


class _SavedValue(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A value in the file of a network's structure."""

    shape: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    dtype: str = "f32"
    layout: str = "nchw"
    of: str = ""
    offset: int = 0
    updates: str = ""
    weight: bool = False


class _SavedNode(msgspec.Struct, forbid_unknown_fields=True):
    """A node in the file of a network's structure."""

    name: str
    operator: str
    axes: dict[str, int | str]
    inputs: dict[str, str]
    outputs: dict[str, str]


class _SavedWeights(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The name and the digest of the file with a network's weights."""

    file: str
    sha256: str = ""


class _SavedNetwork(msgspec.Struct, forbid_unknown_fields=True):
    """The file of a network's structure."""

    format: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: dict[str, _SavedValue]
    nodes: tuple[_SavedNode, ...]
    weights: _SavedWeights


def save(graph: Graph, path: str | Path) -> None:
    """Write a network's structure to `path` (NAME.json) and its weights to NAME.safetensors.

    Each file is written atomically; the structure is written last and contains the digest of the weights.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise UsageError(
            f"{path}: a network's structure is a JSON file; name the file {path.with_suffix('.json').name}",
            kind="not-a-json-name",
            subject=path,
            allowed=path.with_suffix(".json").name,
        )
    from safetensors.numpy import save as packed

    file = path.with_suffix(".safetensors")
    content = packed({name: np.ascontiguousarray(array) for name, array in graph.weights.items()})
    weights = _SavedWeights(file.name, hashlib.sha256(content).hexdigest())
    document = msgspec.to_builtins(_to_saved_network(graph, weights))
    for target, data in ((file, content), (path, json.dumps(document, indent=1).encode() + b"\n")):
        write_file(target, data, "choose another path")


def load(path: str | Path, catalog: Catalog | None = None) -> Graph:
    """Load the network at `path`; raise UsageError that names the file and the wrong key."""
    path, catalog = Path(path), catalog or Catalog()
    saved = read_record(
        _SavedNetwork,
        path,
        FORMAT,
        "write the file again with opbench.graph.saving.save(graph, path), or name a shipped one: opbench net list",
    )
    if Path(saved.weights.file).name != saved.weights.file:
        raise UsageError(
            f"{path}: weights.file: {saved.weights.file!r} is not allowed; the file must be in the same folder; give "
            "its name without a folder",
            kind="not-allowed",
            subject="weights.file",
            value=saved.weights.file,
        )
    file = path.parent / saved.weights.file
    arrays = _read_weights(file, saved.weights.sha256, str(path))
    weights = [name for name, value in saved.values.items() if value.weight]
    if missing_tensors := [name for name in weights if name not in arrays]:
        raise UsageError(
            f"{file}: tensor '{missing_tensors[0]}' is missing; the file has {len(arrays)} tensors; save the network "
            "again with opbench.graph.saving.save(graph, path)",
            kind="missing-weight",
            subject=missing_tensors[0],
            value=len(missing_tensors),
        )
    if extra_tensors := sorted(arrays.keys() - weights):
        raise UsageError(
            f"{file}: tensor '{extra_tensors[0]}' belongs to no weight of {path.name}; remove the tensor, or save "
            "the network again with opbench.graph.saving.save(graph, path)",
            kind="extra-weight",
            subject=extra_tensors[0],
        )
    values = {name: _read_value(f"{path}: values.{name}", name, value) for name, value in saved.values.items()}
    nodes = tuple(_read_node(f"{path}: nodes[{index}]", node, catalog) for index, node in enumerate(saved.nodes))
    arrays = {name: arrays[name] for name in weights}
    try:
        return Graph(saved.name, values, nodes, saved.inputs, saved.outputs, arrays)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", cause=error) from None


def _to_saved_network(graph: Graph, weights: _SavedWeights) -> _SavedNetwork:
    """Return a network's structure in the form of the file."""
    values = {
        name: _SavedValue(
            value.shape, value.dtype, value.layout, value.of, value.offset, value.updates, name in graph.weights
        )
        for name, value in graph.values.items()
    }
    nodes = tuple(
        _SavedNode(node.name, node.operator, dict(node.problem.axes), dict(node.inputs), dict(node.outputs))
        for node in graph.nodes
    )
    return _SavedNetwork(FORMAT, graph.name, tuple(graph.inputs), tuple(graph.outputs), values, nodes, weights)


def _read_value(location: str, name: str, saved: _SavedValue) -> Value:
    """Return a value of a saved network; raise UsageError for an unknown dtype or layout."""
    for key, value, allowed in (("dtype", saved.dtype, tuple(DTYPES)), ("layout", saved.layout, LAYOUTS)):
        if value not in allowed:
            raise UsageError(unknown_name(key, value, allowed, place=f"{location}.{key}"))
    return Value(name, saved.shape, saved.dtype, saved.layout, saved.of, saved.offset, saved.updates)


def _read_node(location: str, saved: _SavedNode, catalog: Catalog) -> Node:
    """Return a node of a saved network; raise UsageError for an unknown operator or axis."""
    try:
        problem = catalog.operator(saved.operator).from_axes(saved.axes)
    except UsageError as error:
        raise UsageError(f"{location} ('{saved.name}'): {error}", cause=error) from None
    return Node(saved.name, saved.operator, problem, saved.inputs, saved.outputs)


def _read_weights(file: Path, expected_sha256: str, structure_file: str) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file; raise UsageError if the file is unreadable or has another digest."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as unpacked

    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be read: {error.strerror or error}; {structure_file} expects its weights in this file, so "
            "copy the weights there",
            kind="unreadable",
            subject=file,
            value=error.errno,
        ) from None
    if expected_sha256 and hashlib.sha256(content).hexdigest() != expected_sha256:
        raise UsageError(
            f"{file}: is damaged, or is not the file that was saved with {structure_file}; restore that file, or "
            f"remove the key weights.sha256 from {structure_file} if you want to use these weights",
            kind="other-weights",
            subject=file,
        )
    try:
        arrays: dict[str, np.ndarray] = unpacked(content)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{file}: is not a readable safetensors file: {error}; copy the file again, or save the network again "
            "with opbench.graph.saving.save(graph, path)",
            kind="not-safetensors",
            subject=file,
        ) from None
    return arrays
