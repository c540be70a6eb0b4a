"""Write the C++ program of a network as files, for `opbench ship alexnet --plan plan.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from opbench import units
from opbench._version import __version__
from opbench.backend.environment import Environment
from opbench.errors import UsageError
from opbench.gpu.limits.products import MULTIPROCESSORS
from opbench.insight.defaults import ranking_gpu as chosen_for
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import Arrays, to_storage
from opbench.networks.plan.choosing import apply_enabled_passes, given_plan, plan_network
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.output_check import allowed_norm
from opbench.networks.plan.plan import Plan
from opbench.networks.plan.running import make_graph, make_inputs
from opbench.networks.ship.network import NetworkProgram, make_program, program_text
from opbench.records import JSON
from opbench.shipping.building import cmakelists, makefile
from opbench.shipping.choosing import ShipTarget, find_target
from opbench.shipping.fixed_text import licence
from opbench.shipping.folder import require_free, write_folder
from opbench.shipping.numbers_file import TensorFile
from opbench.shipping.shipping import ShipResult
from opbench.tables import markdown_table


def ship_network(
    options: NetOptions, *, gpu: str, test: bool, replace: bool, on_progress: Callable[[str], None] = lambda text: None
) -> ShipResult:
    """Write the program of a network; on UsageError, CompileError or EnvironmentFault write no file."""
    out = options.out
    require_free(out, replace)
    device = find_target(gpu)
    original = make_graph(options)
    inputs = make_inputs(original, options)
    original.check_inputs(inputs)
    earlier_plan = given_plan(original, options)
    graph, _ = apply_enabled_passes(original, options, earlier_plan)
    catalog = Catalog(options.variants)
    gpu_to_rank_for = chosen_for(_environment_of(device))
    graph, plan, _ = plan_network(graph, options, {}, "", device.sm_count, catalog, gpu_to_rank_for, earlier_plan)
    _require_plan_of_gpu(plan, device, options)
    cases = plan.cases(graph, catalog)
    on_progress(f"compiling {len(graph.nodes)} layers")
    command = " ".join(("opbench", *options.command))
    program = make_program(graph, cases, device, allowed_norm(graph, cases), command)
    reference: Arrays = {}
    if test:
        on_progress("float64 reference of the network")
        reference = original.reference_outputs(inputs)
    files = _files(program, inputs, reference)
    write_folder(out, files, _manifest(program, options), replace)
    size = units.si(sum(map(len, files.values())), "B")
    notes = (f"no cubin: {program.compiled.failure_reason}",) if program.compiled.failure_reason else ()
    return ShipResult(
        out, notes, f"wrote {out}: {len(graph.nodes)} layers, {len(program.kernel_texts)} kernel texts, {size}"
    )


def _environment_of(gpu: ShipTarget) -> Environment:
    """Return the environment that a backend would report for a GPU model."""
    digits = gpu.arch.removeprefix("sm_")
    capability = f"{digits[:-1]}.{digits[-1]}"
    assert (int(digits[:-1]), int(digits[-1])) in MULTIPROCESSORS
    return Environment(gpu=gpu.name, compute_capability=capability, sm_count=gpu.sm_count)


def _require_plan_of_gpu(plan: Plan, gpu: ShipTarget, options: NetOptions) -> None:
    """Raise UsageError for a plan that was made for another GPU."""
    if options.plan and plan.gpu and find_target(plan.gpu).arch != gpu.arch:
        raise UsageError(
            f"{options.plan}: this plan is for {plan.gpu}, but --gpu names {gpu.name} ({gpu.arch}); name the GPU of "
            "the plan with --gpu, or make a plan on that GPU: opbench net run NAME --tune",
            kind="other-gpu",
            subject=options.plan,
            value=plan.gpu,
            allowed=gpu.name,
        )


def _files(program: NetworkProgram, inputs: Arrays, reference: Arrays) -> dict[str, bytes]:
    graph, prefix = program.graph, program.name
    weights, example = TensorFile(), TensorFile()
    for name, array in graph.weights.items():
        dtype = graph.values[name].dtype
        weights.add(name, to_storage(array, dtype), dtype)
    for name, array in inputs.items():
        dtype = graph.values[name].dtype
        example.add(name, to_storage(array, dtype), dtype)
    for name in graph.outputs:
        if name in reference:
            example.add(f"{name}.reference", reference[name].astype(np.float64), "f64")
    metadata = {"made by": program.command, "network": graph.name}
    cubin = f"{prefix}.{program.arch}.cubin"
    files = {
        f"{prefix}.cu": program_text(program).encode(),
        f"{prefix}_weights.safetensors": weights.to_bytes(metadata),
        f"{prefix}_example.safetensors": example.to_bytes({**metadata, "reference": "float64, NumPy"}),
        "Makefile": makefile(prefix, program.arch, "network", cubin).encode(),
        "CMakeLists.txt": cmakelists(prefix, program.arch, "network").encode(),
        "README.md": _readme(program, cubin).encode(),
        "LICENSE": licence(),
        **{name: text.encode() for name, text in program.text.headers.items()},
    }
    return files | ({cubin: program.compiled.cubin} if program.compiled.cubin else {})


def _manifest(program: NetworkProgram, options: NetOptions) -> dict[str, JSON]:
    return {
        "opbench": __version__,
        "command": program.command,
        "network": options.network,
        "sizes": dict(options.sizes),
        "precision": options.precision,
        "gpu": program.gpu.name,
        "arch": program.arch,
        "cases": {node.code.case.name: node.code.case.variant.source_sha256 for node in program.nodes},
    }


def _readme(program: NetworkProgram, cubin: str) -> str:
    prefix, graph = program.name, program.graph
    rows = []
    for node in program.nodes:
        case = node.code.case
        variant = case.name.removesuffix(str(case.problem))
        rows.append((node.node.name, f"{node.node.operator}{case.problem}", variant, ", ".join(case.variant.kernels)))
    peak_bytes, naive_bytes = program.memory.peak_bytes, program.memory.naive_bytes
    weights = sum(graph.values[name].nbytes for name in graph.weights)
    lines = [
        f"# {prefix} as one program for {program.gpu.name} ({program.arch})",
        "",
        f"Made by `{program.command}` (opbench {__version__}, MIT License). `{prefix}.cu` has kernels, one",
        f"function per layer, and `main()`, which calls them in order. `{prefix}_weights.safetensors` has the weights",
        f"as kernels read them, `{prefix}_example.safetensors` an input and the result of the float64 reference.",
        "",
        "```sh",
        "make test                                          # nvcc; exit code 0: as the reference has it",
        f"make clean && make test cubin=1                    # g++ alone, with the kernels of {cubin}",
        f"./{prefix} mine.safetensors                             # another input, under the same name and shape",
        "TIME=1 make test                                   # the time of a run, launch by launch and as a CUDA graph",
        "```",
        "",
        *markdown_table(("layer", "problem", "variant", "kernels"), rows, left=range(4)),
        "",
        f"Memory: {units.si(weights, 'B')} of weights; {units.si(peak_bytes, 'B')} for the values between layers,",
        f"in one piece ({units.si(naive_bytes, 'B')} if nothing shared a place).",
        "",
    ]
    return "\n".join(lines)


def is_network(name: str) -> bool:
    """Return whether a name is that of a network or of a saved network's file."""
    from opbench.graph.zoo import NETWORKS

    return name in NETWORKS or (name.endswith(".json") and Path(name).is_file())
