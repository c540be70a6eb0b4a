"""Import networks from PyTorch and ONNX; an unsupported operator raises an error with its name and node."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from opbench.errors import Unreadable, UsageError
from opbench.graph.graph import Graph
from opbench.paths import MissingExtra

if TYPE_CHECKING:
    import onnx
    import torch


def from_torch(
    program: torch.export.ExportedProgram | torch.nn.Module | str | Path, *arguments: object, name: str = ""
) -> Graph:
    """Return the network of a `torch.export` program, of a .pt2 file, or of a module called with `arguments`.

    A traced or scripted TorchScript module is accepted too. Sizes must be fixed, and a module must be in
    evaluation mode.
    """
    from opbench.graph.importing import aten

    if isinstance(program, str | Path):
        if not Path(program).exists():
            raise UsageError(
                f"{program}: the file does not exist; write it with torch.export.save(torch.export.export(model, "
                f'inputs), "{program}")',
                kind="no-such-file",
                subject=Path(program),
            )
        program = _torch().export.load(str(program))
    elif not hasattr(program, "graph_signature"):
        if getattr(program, "training", False):
            raise UsageError(
                f"{type(program).__name__}: the module is in training mode; call .eval() on the module first",
                kind="training-mode",
                subject=type(program).__name__,
            )
        torch = _torch()
        if isinstance(program, torch.jit.ScriptModule):
            program = _from_torchscript(program, arguments)
        program = torch.export.export(program, arguments)
    return aten.read_program(program, name or "torch")


def from_onnx(model: onnx.ModelProto | str | Path, name: str = "") -> Graph:
    """Return the network of an ONNX model or of a file with one; sizes must be fixed."""
    try:
        import onnx
    except ImportError:
        raise MissingExtra("reading ONNX needs the package onnx", "onnx") from None
    from opbench.graph.importing import onnx_model

    if isinstance(model, str | Path):
        try:
            model = onnx.load(str(model))
        except OSError as error:
            raise Unreadable(Path(model), error) from None
        except Exception as error:  # protobuf's DecodeError; protobuf is imported by onnx
            raise UsageError(
                f"{model}: is not an ONNX model: {error}; write the model with torch.onnx.export",
                kind="not-onnx",
                subject=Path(model),
            ) from None
    return onnx_model.read_model(model, name or model.graph.name or "onnx")


def _from_torchscript(module: torch.jit.ScriptModule, arguments: tuple[object, ...]) -> torch.nn.Module:
    """Convert a TorchScript module to one that `torch.export` accepts."""
    try:
        from torch._export.converter import TS2EPConverter
    except ImportError:
        raise UsageError(
            "this PyTorch cannot convert a TorchScript module; pass the original nn.Module, or export it with "
            "torch.export.export(model, inputs)",
            kind="old-torch",
            subject="torch.jit",
        ) from None
    # The program has symbolic sizes; the module is exported again with those of the arguments.
    return TS2EPConverter(module, arguments).convert().module()


def _torch() -> ModuleType:
    """Return the module torch; raise MissingExtra if it is not installed."""
    try:
        import torch
        import torch.export
    except ImportError:
        raise MissingExtra("PyTorch is not installed, and importing from PyTorch needs it", "torch") from None
    module_type: ModuleType = torch
    return module_type
