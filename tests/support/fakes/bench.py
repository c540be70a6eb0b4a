"""As much of cuda-bench as the tests of the self-test use."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def summary(tag: str, value: str) -> dict[str, Any]:
    """As nvbench writes it: numbers are strings."""
    return {"tag": tag, "data": [{"name": "value", "type": "float64", "value": value}]}


class FakeBench(types.ModuleType):
    """As much of cuda-bench 0.3 as the race uses; every `exec` calls the launch so often and leaves samples."""

    def __init__(self) -> None:
        super().__init__("cuda.bench")
        self.skipped: list[str] = []
        self.modes: list[Any] = []

    def register(self, function: Callable[[Any], None]) -> Any:
        self.function = function
        return self

    def add_int64_axis(self, name: str, values: list[int]) -> None:
        self.axis = (name, values)

    def run_all_benchmarks(self, argv: list[str]) -> None:
        assert argv[1:3] == ["--devices", "0"] and argv[3] == "--jsonbin" and len(argv) == 5, "every default left alone"
        path, states = Path(argv[4]), []
        (path.parent / "bench.json-bin").mkdir()
        for value in self.axis[1]:
            done: list[Any] = []

            def execute(launcher: Any, batched: Any = None, done: list[Any] = done) -> None:
                self.modes.append(batched)
                done += [launcher(None) for _ in range(7)]

            state = types.SimpleNamespace(
                get_int64={self.axis[0]: value}.__getitem__,
                set_stream=lambda provider: provider.__cuda_stream__(),
                exec=execute,
                skip=self.skipped.append,
            )
            self.function(state)
            name = f"bench.json-bin/{value}.bin"
            np.full(len(done), 2e-3, "<f4").tofile(path.parent / name)
            kept = {"tag": "nv/json/bin:nv/cold/sample_times", "data": [{"name": "filename", "value": name}]}
            axes = [{"name": self.axis[0], "type": "int64", "value": str(value)}]
            summaries = [summary("nv/cold/walltime", "0.75"), kept] if done and value else [kept]
            states.append({"axis_values": axes, "summaries": summaries if done else None})
        path.write_text(json.dumps({"benchmarks": [{"states": states}]}))
