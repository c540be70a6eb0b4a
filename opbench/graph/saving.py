"""Save and load a network as two files: its structure as JSON, its weights as safetensors.

Format history (the key "format"): 1, the first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from opbench.errors import EnvironmentFault, UsageError, unknown, writing_remedy
from opbench.graph.graph import Graph
from opbench.graph.values import LAYOUTS, Node, Value
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import DTYPES
from opbench.paths import write_atomically
from opbench.records import JSON

FORMAT = "opbench network 1"
PLAIN = asdict(Value("", ()))
"""Default values of a value's keys."""
KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "a table", bool: "true or false"}


def save(graph: Graph, path: str | Path) -> None:
    """Write the structure to `path`, NAME.json, and the weights to NAME.safetensors.

    Each file is written atomically; the structure is written last and contains the digest of the weights.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise UsageError(f"{path}: a network's structure is a JSON file; call it {path.with_suffix('.json').name}")
    from safetensors.numpy import save as packed

    file = path.with_suffix(".safetensors")
    content = packed({name: np.ascontiguousarray(array) for name, array in graph.weights.items()})
    document = structure(graph) | {"weights": {"file": file.name, "sha256": hashlib.sha256(content).hexdigest()}}
    for target, data in ((file, content), (path, json.dumps(document, indent=1).encode() + b"\n")):
        try:
            write_atomically(target, data)
        except OSError as error:
            raise EnvironmentFault(
                f"{target}: cannot write: {error.strerror or error}; {writing_remedy(error)}choose another path"
            ) from None


def load(path: str | Path, catalog: Catalog | None = None) -> Graph:
    """Load the network at `path`; raise UsageError with the file and the wrong key."""
    path = Path(path)
    document = _read_json(path)
    where = str(path)
    weights_of = _read_key(where, document, "weights", dict)
    file = path.parent / _file_name(f"{where}: weights", weights_of)
    arrays = _read_weights(file, weights_of.get("sha256"), where)
    graph_of = _graph_arguments(where, document, catalog or Catalog())
    for name in graph_of["weights"]:
        if name not in arrays:
            raise UsageError(f"{file}: tensor '{name}' is missing ({len(arrays)} exist)")
    if more := sorted(arrays.keys() - graph_of["weights"]):
        raise UsageError(f"{file}: tensor '{more[0]}' belongs to no weight of {path.name}")
    try:
        return Graph(**{**graph_of, "weights": {name: arrays[name] for name in graph_of["weights"]}})
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def structure(graph: Graph) -> dict[str, JSON]:
    """Return a network without the content of its weights, as JSON."""
    values = {}
    for name, value in graph.values.items():
        entry = {key: given for key, given in asdict(value).items() if key != "name" and given != PLAIN[key]}
        values[name] = entry | {"shape": list(value.shape)} | ({"weight": True} if name in graph.weights else {})
    nodes: list[dict[str, JSON]] = [
        {
            "name": node.name,
            "operator": node.operator,
            "axes": dict(node.problem.axes),
            "inputs": dict(node.inputs),
            "outputs": dict(node.outputs),
        }
        for node in graph.nodes
    ]
    ends = {"inputs": list(graph.inputs), "outputs": list(graph.outputs)}
    return {"format": FORMAT, "name": graph.name, **ends, "values": values, "nodes": nodes}


# Reading ----------------------------------------------------------------------------------------------------------


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror or error}; `save` writes one") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not valid JSON: {error}") from None
    except RecursionError:
        raise UsageError(f"{path}: is not a network: nested too deep") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        seen = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise UsageError(f"{path}: format is {seen!r}; this opbench reads {FORMAT!r}")
    _require_known_keys(str(path), document, ("format", "name", "inputs", "outputs", "values", "nodes", "weights"))
    return document


def _read_weights(file: Path, digest: object, where: str) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as unpacked

    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot read: {error.strerror or error}; {where} has its weights there") from None
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise UsageError(
            f"{file}: is damaged or not what {where} was saved with; "
            "take the file that was, or remove the key weights.sha256 if these are meant"
        )
    try:
        arrays: dict[str, np.ndarray] = unpacked(content)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: is not a readable safetensors file: {error}") from None
    return arrays


def _graph_arguments(where: str, document: Mapping[str, object], catalog: Catalog) -> dict[str, Any]:
    """Return the arguments of the graph; "weights" contains only names."""
    values, weights = {}, []
    for name, entry in _read_key(where, document, "values", dict).items():
        values[name] = _value(f"{where}: values.{name}", name, entry)
        weights += [name] if entry.get("weight") else []
    nodes = tuple(
        _read_node(f"{where}: nodes[{index}]", entry, catalog)
        for index, entry in enumerate(_read_key(where, document, "nodes", list))
    )
    ends = {
        key: tuple(_require_texts(f"{where}: {key}", _read_key(where, document, key, list)))
        for key in ("inputs", "outputs")
    }
    return {
        "name": _read_key(where, document, "name", str),
        "values": values,
        "nodes": nodes,
        "weights": weights,
        **ends,
    }


def _value(where: str, name: str, entry: Any) -> Value:
    _require_known_keys(where, entry, ("shape", "dtype", "layout", "of", "weight"))
    _read_key(where, entry, "weight", bool, False)
    shape = _read_key(where, entry, "shape", list)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape):
        raise UsageError(f"{where}.shape: {shape!r} is not allowed; whole numbers >= 1")
    modes = {key: _read_key(where, entry, key, str, PLAIN[key]) for key in ("dtype", "layout", "of")}
    for key, known in (("dtype", tuple(DTYPES)), ("layout", LAYOUTS)):
        if modes[key] not in known:
            raise UsageError(unknown(key, modes[key], known, where=f"{where}.{key}"))
    return Value(name, tuple(shape), **modes)


def _read_node(where: str, entry: Any, catalog: Catalog) -> Node:
    _require_known_keys(where, entry, ("name", "operator", "axes", "inputs", "outputs"))
    name, operator = _read_key(where, entry, "name", str), _read_key(where, entry, "operator", str)
    tied = {}
    for key in ("inputs", "outputs"):
        table = _read_key(where, entry, key, dict)
        _require_texts(f"{where}.{key}", list(table.values()))
        tied[key] = table
    try:
        problem = catalog.operator(operator).from_axes(_read_key(where, entry, "axes", dict))
    except UsageError as error:
        raise UsageError(f"{where} ('{name}'): {error}") from None
    return Node(name, operator, problem, **tied)


def _read_key(where: str, table: Mapping[str, object], key: str, kind: type, default: object = None) -> Any:
    if key not in table and default is not None:
        return default
    if key not in table:
        raise UsageError(f"{where}: key '{key}' is missing; it is {KINDS[kind]}")
    if not isinstance(table[key], kind):
        raise UsageError(f"{where}.{key}: {table[key]!r} is not allowed; it is {KINDS[kind]}")
    return table[key]


def _require_texts(where: str, items: list[Any]) -> list[str]:
    for item in items:
        if not isinstance(item, str):
            raise UsageError(f"{where}: {item!r} is not allowed; it names values")
    return items


def _require_known_keys(where: str, table: object, keys: tuple[str, ...]) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: {table!r} is not allowed; it is a table")
    for key in table:
        if key not in keys:
            raise UsageError(unknown("key", key, keys, where=where))


def _file_name(where: str, table: Mapping[str, object]) -> str:
    _require_known_keys(where, table, ("file", "sha256"))
    name = str(_read_key(where, table, "file", str))
    if Path(name).name != name:
        raise UsageError(
            f"{where}.file: {name!r} is not allowed; the file must be in the same folder; give its name without a "
            "folder"
        )
    return name
