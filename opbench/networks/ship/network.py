"""Generate the C++ source of a network: the host launches the kernels in order, in planned memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.values import Node
from opbench.kernels.case import Case
from opbench.kernels.expression import round_up
from opbench.kernels.launch import BuildRequest
from opbench.kernels.tensors import DTYPES, WORKSPACE_ALIGNMENT, Tensor
from opbench.networks.plan.executor import require_fitting
from opbench.networks.plan.memory import MemoryPlan, plan_memory
from opbench.networks.plan.setup_launches import constants, weight_setup, workspace_of
from opbench.shipping.choosing import ShipTarget, require_shippable_variant
from opbench.shipping.compiling import CompiledText, architecture, compile_text
from opbench.shipping.fixed_text import banner, c_string, template, wrap_code
from opbench.shipping.kernel_text import DeviceText, KernelText, device_text, kernel_texts
from opbench.shipping.launching import LaunchCode, cpp_name, launch_code
from opbench.shipping.source import kernels_and_launching, update_lines, workspace_declarations


@dataclass(frozen=True)
class NodeCode:
    """The generated code for the launches of one node."""

    node: Node
    code: LaunchCode
    persistent: tuple[Tensor, ...] = ()
    """Buffers that the setup launches fill and that the other launches read."""
    scratch: tuple[Tensor, ...] = ()
    """Buffers that only the setup launches need."""
    workspace: tuple[Tensor, ...] = ()
    """Buffers that each run fills."""

    @property
    def function(self) -> str:
        """Return the name of the node's C++ function."""
        return cpp_name(self.node.name)


@dataclass(frozen=True)
class NetworkProgram:
    """A network prepared for shipping: node code, memory plan and kernels for its C++ source."""

    name: str
    gpu: ShipTarget
    arch: str
    graph: Graph
    nodes: tuple[NodeCode, ...]
    memory: MemoryPlan
    kernel_texts: tuple[KernelText, ...]
    text: DeviceText
    compiled: CompiledText
    output_tolerance: float
    """Tolerance of an output, relative, in norm."""
    command: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    """Name of each value in the source."""


def make_program(
    graph: Graph, cases: Mapping[str, Case], gpu: ShipTarget, output_tolerance: float, command: str
) -> NetworkProgram:
    """Return the program of a network; raise UsageError for a training step, or for a case that cannot be shipped."""
    if graph.state:
        raise UsageError(
            f"{graph.name}: a run of this network changes its state, as training does, and only inference can be "
            "shipped; build the network for inference (training=False)",
            kind="has-state",
            subject=graph.name,
        )
    require_fitting(graph, cases)
    for case in cases.values():
        require_shippable_variant(case, gpu)
    by_request = kernel_texts(cases[node.name] for node in graph.nodes)
    modules = tuple(by_request.values())
    text = device_text(modules)
    arch = architecture(modules, gpu.arch)
    compiled = compile_text(text, modules, arch)
    nodes = tuple(_node_code(graph, node, cases[node.name], by_request, gpu.sm_count, compiled) for node in graph.nodes)
    sizes = {node.node.name: sum(round_up(t.nbytes, WORKSPACE_ALIGNMENT) for t in node.workspace) for node in nodes}
    memory = plan_memory(graph, {name: size for name, size in sizes.items() if size})
    return NetworkProgram(
        cpp_name(graph.name),
        gpu,
        arch,
        graph,
        nodes,
        memory,
        modules,
        text,
        compiled,
        output_tolerance,
        command,
        _names(graph),
    )


def _node_code(
    graph: Graph,
    node: Node,
    case: Case,
    by_request: Mapping[BuildRequest, KernelText],
    sm_count: int,
    compiled: CompiledText,
) -> NodeCode:
    setup = weight_setup(graph, node, case)
    written = set(node.inputs) - set(constants(graph, node))
    kernel_text = by_request[case.request()]
    code = launch_code(
        case, kernel_text, sm_count, compiled.parameter_sizes, written, separate_setup=bool(setup.launches)
    )
    workspaces = case.workspace(sm_count)
    persistent = tuple(t for t in workspaces if t.name in setup.persistent)
    scratch = tuple(t for t in workspaces if t.name in set(setup.workspaces) - set(setup.persistent))
    return NodeCode(node, code, persistent, scratch, tuple(workspace_of(graph, node, case, sm_count)))


def _names(graph: Graph) -> dict[str, str]:
    """Return a unique C++ name for every value."""
    names: dict[str, str] = {}
    used_names = {"arena", "file", "run", "stream", "count", "words", "example", "right", "bytes"}
    for value in graph.values:
        name = cpp_name(value)
        while name in used_names:
            name += "_"
        used_names.add(name)
        names[value] = name
    return names


# The source -------------------------------------------------------------------------------------------------------


def program_text(program: NetworkProgram) -> str:
    """Return the C++ source of a network's program."""
    prefix = program.name
    includes = ["algorithm", "cmath", "cstdlib", "string", "vector"]
    sections = [
        "\n".join([*banner(program.gpu.name, program.arch, program.command), "//", *_file_outline(program)]),
        "\n".join(f"#include <{name}>" for name in includes),
        *kernels_and_launching(
            program.text, program.kernel_texts, program.compiled, [node.code for node in program.nodes]
        ),
        *(template(template_name) for template_name in ("memory", "tensors", "judge", "timing", "program")),
        "// ---- the layers: a function each, named as in the network " + "-" * 63,
        "namespace layer {\n\n"
        + "\n\n".join(wrap_code(_layer_function(node)) for node in program.nodes)
        + "\n\n}  // namespace layer",
        f"// ---- {prefix} " + "-" * (114 - len(prefix)),
        wrap_code(_main_program(program)),
    ]
    return "\n\n".join(sections) + "\n"


def _file_outline(program: NetworkProgram) -> list[str]:
    graph = program.graph
    lines = [
        f"// {graph.name}: {', '.join(_tensor_comment(graph, name) for name in graph.inputs)} to "
        f"{', '.join(_tensor_comment(graph, name) for name in graph.outputs)}, {len(graph.nodes)} layers.",
        "// In this order: kernels, each in a namespace of its own; what launches them; a function a layer; main(),",
        "// which reads the weights and an input, calls the layers in order, and compares with the float64 reference.",
        "//",
    ]
    width = max(len(node.node.name) for node in program.nodes)
    lines += [f"//   {node.node.name:{width}}  {node.code.case.name}" for node in program.nodes]
    return lines


def _tensor_comment(graph: Graph, name: str) -> str:
    value = graph.values[name]
    layout = f" {value.layout}" if len(value.shape) == 4 else ""
    return f"{name} {value.dtype}{list(value.shape)}{layout}"


def _layer_function(node_code: NodeCode) -> str:
    """Return the C++ function of a node, and that of its setup launches."""
    code, name = node_code.code, node_code.function
    tensors = [f"const void* {cpp_name(t.name)}" for t in code.inputs] + [
        f"void* {cpp_name(t.name)}" for t in code.outputs
    ]
    persistent = {t.name for t in node_code.persistent}
    functions = []
    if code.setup_lines.lines:
        parameters = [f"const void* {cpp_name(t.name)}" for t in code.inputs if t.name in code.setup_lines.reads]
        parameters += [f"void* {cpp_name(t.name)}" for t in node_code.persistent] + (
            ["void* workspace"] if node_code.scratch else []
        )
        lines = [f"// Once: {', '.join(sorted(persistent))} of what never changes."]
        lines += _c_function(
            f"prepare_{name}",
            parameters,
            [*workspace_declarations(node_code.scratch), *(f"    {x}" for x in code.setup_lines.lines)],
        )
        functions.append("\n".join(lines))
    parameters = (
        tensors
        + [f"void* {cpp_name(t.name)}" for t in node_code.persistent]
        + (["void* workspace"] if node_code.workspace else [])
    )
    used_names = {*code.other_lines.reads, *code.updates, *code.updates.values()}
    unused = [
        cpp_name(t.name) for t in (*code.inputs, *code.outputs, *node_code.persistent) if t.name not in used_names
    ]
    lines = [f"// {code.case.name}", f"// {code.case.variant.title}"]
    lines += _c_function(
        name,
        parameters,
        [
            *workspace_declarations(node_code.workspace),
            *(f"    (void){x};" for x in unused),
            *update_lines(code),
            *(f"    {line}" for line in code.other_lines.lines),
        ],
    )
    return "\n\n".join([*functions, "\n".join(lines)])


def _c_function(name: str, parameters: Iterable[str], body: Iterable[str]) -> list[str]:
    signature = f"static cudaError_t {name}({', '.join([*parameters, 'cudaStream_t stream'])}) {{"
    return [signature, *body, "    return cudaSuccess;", "}"]


def _main_program(program: NetworkProgram) -> str:
    graph, names, prefix = program.graph, program.names, program.name
    digits = program.arch.removeprefix("sm_").rstrip("a")
    lines = [
        "int main(int count, char** words) {",
        f'    require_gpu({digits[:-1]}, {digits[-1]}, {str(program.arch.endswith("a")).lower()}, "{program.arch}");',
        f'    const Tensors file("{prefix}_weights.safetensors");',
        f'    const Tensors example(count > 1 ? words[1] : "{prefix}_example.safetensors");',
        "",
        "    // Weights, as the kernels read them.",
    ]
    for name in graph.weights:
        content = f"file.at({c_string(name)}, {graph.values[name].nbytes}), {graph.values[name].nbytes}"
        lines.append(f"    const Memory {names[name]}({content});  // {_tensor_comment(graph, name)}")
    lines += [
        "",
        "    // Values between layers, in one allocation; two share memory only if the first is no longer needed.",
        f"    const Memory arena({program.memory.peak_bytes});",
        *(_memory_declaration(program, name) for name in _values_in_order(graph)),
    ]
    lines += _setup_code(program)
    lines += ["", "    // The network.", "    auto run = [&](cudaStream_t stream) -> cudaError_t {"]
    for node in program.nodes:
        arguments = [names[value] for _, value in node.node.tensors()]
        arguments += [_setup_buffer(node, tensor) for tensor in node.persistent]
        if node.workspace:
            arguments.append(f"at(arena.address, {program.memory.workspaces[node.node.name]})")
        lines.append(f"        TRY(layer::{node.function}({', '.join([*arguments, 'stream'])}));")
    lines += ["        return cudaSuccess;", "    };", "", "    // An input, the run, and what came out."]
    for name in graph.inputs:
        nbytes = graph.values[name].nbytes
        copy_arguments = f"{names[name]}, example.at({c_string(name)}, {nbytes}), {nbytes}, cudaMemcpyHostToDevice"
        lines.append(f'    check(cudaMemcpy({copy_arguments}), "the input");')
    lines += [
        f'    check_launched(run(nullptr), "{prefix}");',
        f'    check(cudaDeviceSynchronize(), "{prefix}");',
        "    bool right = true;",
    ]
    types = {"f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16", "i32": "I32", "u8": "U8"}
    for name in graph.outputs:
        value, result = graph.values[name], f"{names[name]}_result"
        c_type, shape = types[value.dtype], ", ".join(map(str, value.shape))
        judge_call = f"judged(example, {c_string(name)}, {result}.content, {c_type}, 1, {program.output_tolerance!r})"
        lines += [
            f"    const Result {result}({c_string(name)}, {names[name]}, {value.nbytes}, {c_type});",
            f'    {result}.write("{prefix}_output.safetensors", "[{shape}]");'
            if len(graph.outputs) == 1
            else f'    {result}.write("{prefix}_{names[name]}.safetensors", "[{shape}]");',
            f'    if (example.has("{name}.reference")) right &= {judge_call};',
        ]
    lines += [
        "    time_of(run);",
        "    time_of_graph(run);",
        '    std::printf(right ? "all right\\n" : "WRONG\\n");',
        "    return right ? 0 : 1;",
        "}",
    ]
    return "\n".join(lines)


def _values_in_order(graph: Graph) -> list[str]:
    """Return all values except weights: inputs and results in order, then views."""
    computed = [*graph.inputs, *(name for node in graph.nodes for name in node.outputs.values())]
    all_names = dict.fromkeys((*computed, *graph.values))
    without_weights = [name for name in all_names if name not in graph.weights]
    return sorted(without_weights, key=lambda name: graph.base(name) != name)


def _memory_declaration(program: NetworkProgram, name: str) -> str:
    """Return the place of a value that is not a weight: in the one allocation, or in another value's memory."""
    graph, value = program.graph, program.graph.values[name]
    base, start, _ = graph.memory_range(name)
    if base == name:
        address, comment = f"at(arena.address, {program.memory.offsets[name]})", _tensor_comment(graph, name)
    else:
        base_address = f"{program.names[base]}.address" if base in graph.weights else program.names[base]
        address, comment = (
            f"at({base_address}, {start * DTYPES[value.dtype].itemsize})",
            f"{_tensor_comment(graph, name)}, of {base}",
        )
    return f"    void* const {program.names[name]} = {address};  // {comment}"


def _setup_buffer(node_code: NodeCode, tensor: Tensor) -> str:
    return f"{node_code.function}_{cpp_name(tensor.name)}"


def _setup_code(program: NetworkProgram) -> list[str]:
    """Return the C++ code of all setup launches, with their memory."""
    lines: list[str] = []
    for node in program.nodes:
        if not node.code.setup_lines.lines:
            continue
        lines += [f"    const Memory {_setup_buffer(node, tensor)}({tensor.nbytes});" for tensor in node.persistent]
        values = {tensor.name: program.names[value] for tensor, value in node.node.tensors()}
        arguments = [values[t.name] for t in node.code.inputs if t.name in node.code.setup_lines.reads]
        arguments += [_setup_buffer(node, tensor) for tensor in node.persistent]
        arguments += [*(["scratch"] if node.scratch else []), "nullptr"]
        call = f"layer::prepare_{node.function}({', '.join(arguments)})"
        line = f'check_launched({call}, "prepare_{node.function}");'
        if node.scratch:
            size = sum(round_up(tensor.nbytes, WORKSPACE_ALIGNMENT) for tensor in node.scratch)
            lines += [
                "    {",
                f"        const Memory scratch({size});",
                f"        {line}",
                '        check(cudaDeviceSynchronize(), "what is made of the weights");',
                "    }",
            ]
        else:
            lines.append(f"    {line}")
    return (
        ["", "    // Results of setup launches, which kernels compute once from the weights.", *lines] if lines else []
    )
