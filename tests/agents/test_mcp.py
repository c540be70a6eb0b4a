"""The tools of `opbench mcp`, used by a client that knows nothing but what the server tells it."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from opbench.agents.server import server
from opbench.agents.tools import TOOLS, Tools
from support.common import ROOT

if TYPE_CHECKING:
    from mcp.server import MCPServer

anyio = pytest.importorskip("anyio")
client = pytest.importorskip("mcp.client.client", reason="the extra mcp brings it")
stdio = pytest.importorskip("mcp.client.stdio")

VARIANTS = ROOT / "variants"
REWRITES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "relu": ("scalar", {"vectorised_access": "vec4"}),
    "add": ("scalar", {"vectorised_access": "vec4"}),
    "avgpool2d": ("flat_divmod", {"vectorised_access": "multi_output"}),
    "concat": ("flat_divmod", {"vectorised_access": "vectorised"}),
    "conv2d": ("naive_channel_x", {"coalesced": "naive_grid3d", "shared_memory_tile": "input_tile"}),
    "layout2d": ("flat_divmod", {"shared_memory_transpose": "shared_tile", "vectorised_access": "vectorised"}),
    "matmul": ("coalesced", {"shared_memory_tile": "shared_tile", "register_tile": "register_tile_1d"}),
    "maxpool2d": ("flat_divmod", {"vectorised_access": "multi_output"}),
    "softmax": ("thread_per_row", {"coalesced": "block_per_row"}),
    "transpose": (
        "naive_write_strided",
        {"shared_memory_transpose": "shared", "bank_conflict_free": "padded", "vectorised_access": "vectorised"},
    ),
}
"""For each operator a naive kernel, and the kernel that applies a mechanism."""
BY_A_PROCESS = "softmax"
LONGEST = 9000
"""Most characters of an answer; the list of all operators is the longest one."""

Call = Callable[..., Awaitable[dict[str, Any]]]


def session(folder: Path, work: Callable[[Call], Awaitable[None]], server: MCPServer | None = None) -> None:
    """Start the server as a client does, and give `work` a function that calls a tool and returns its answer.

    A server of this process takes its place if it is given.
    """

    async def main() -> None:
        command = stdio.StdioServerParameters(
            command=sys.executable, args=["-m", "opbench", "mcp", "--root", str(folder)], cwd=str(folder)
        )
        async with client.Client(server or stdio.stdio_client(command)) as connected:

            async def call(tool: str, **arguments: object) -> dict[str, Any]:
                got = await connected.call_tool(tool, arguments)
                if got.is_error:
                    return {"error": got.content[0].text}
                answer: dict[str, Any] = got.structured_content
                assert len(json.dumps(answer)) <= LONGEST
                step = answer["next_step"]
                assert step["sentence"] and (step["tool"] in TOOLS or not step["tool"]), step
                return answer

            call.tools = (await connected.list_tools()).tools  # type: ignore[attr-defined]
            await work(call)

    anyio.run(main)


def source(operator: str, variant: str) -> str:
    """Return a kernel for `operator` as a file that stands alone."""
    text = (VARIANTS / operator / f"{variant}.cu").read_text()
    return text.replace("// /// opbench\n", f'// /// opbench\n// operator = "{operator}"\n', 1)


@pytest.mark.parametrize("operator", REWRITES)
def test_the_first_advice_leads_from_a_naive_kernel_to_a_better_one(
    operator: str, tmp_path: Path, forked_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One operator in the processes of a user; the others in this process, without a cage."""
    naive, rewrites = REWRITES[operator]
    (tmp_path / "naive.cu").write_text(source(operator, naive))

    async def work(call: Call) -> None:
        name, moved, seen = "naive.cu", None, []
        while True:
            explained = await call("explain", file=name)
            problem = "(" + explained["case"].partition("(")[2]
            checked = await call("check", file=name, problems=[problem])  # the examples, too, take minutes
            assert (checked["status"], checked["next_step"]["tool"]) == ("right", "explain"), checked["summary"]
            traffic = explained["traffic"]["moved_bytes"]
            assert moved is None or traffic <= moved * 1.02, "the advice costs traffic"
            moved = traffic
            first = explained["advice"][0] if explained["advice"] else None
            if first is None or first["mechanism"] not in rewrites:
                break
            assert first["mechanism"] not in seen, "the advice did not remove the problem that it names"
            assert first["source_line"] and 0 < first["avoidable_share"] <= 1 and first["example_variants"]
            seen.append(first["mechanism"])
            name = f"{first['mechanism']}.cu"
            (tmp_path / name).write_text(source(operator, rewrites[first["mechanism"]]))
        assert seen == list(rewrites)
        compared = await call("compare", files=["naive.cu", name])
        assert compared["kernels"][1]["traffic_ratio"] <= 1

    monkeypatch.chdir(tmp_path)
    session(tmp_path, work, None if operator == BY_A_PROCESS else server(Tools(tmp_path, no_cage=True)))


def test_each_fault_has_its_line_and_the_errors_say_what_to_do(tmp_path: Path) -> None:
    naive = source("softmax", "thread_per_row")
    (tmp_path / "beyond.cu").write_text(naive.replace("row >= rows", "row > rows"))
    (tmp_path / "broken.cu").write_text(naive.replace("float largest", "flot largest"))
    number = next(n for n, line in enumerate(naive.splitlines(), 1) if "largest = fmaxf" in line)

    async def work(call: Call) -> None:
        beyond = await call("check", file="beyond.cu")
        assert beyond["status"] == "wrong" and beyond["right"] == 0
        fault = beyond["faults"][0]
        assert (fault["code"], fault["file"], fault["line"]) == ("out-of-bounds", "beyond.cu", number)
        assert fault["source_line"] and fault["remedy"] and fault["remedy"] in beyond["next_step"]["sentence"]
        broken = await call("check", file="broken.cu")
        assert (broken["status"], broken["faults"][0]["code"]) == ("failed", "does-not-compile")
        refused = await call("explain", file="broken.cu")
        assert "check" in refused["error"]
        outside = await call("check", file="../elsewhere.cu")
        assert "--root" in outside["error"]
        missing = await call("check", file="absent.cu")
        assert "absent.cu" in missing["error"] and str(tmp_path) not in missing["error"]
        unknown = await call("describe_operator", operator="sofmax")
        assert "softmax" in unknown["error"]
        alone = await call("compare", files=["beyond.cu"])
        assert "two or more" in alone["error"]

    session(tmp_path, work)


def test_a_kernel_written_from_the_description_is_judged_and_run(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        listed = await call("list_operators")
        assert "relu" in {one["operator"] for one in listed["operators"]}
        described = await call("describe_operator", operator="relu")
        assert described["sizes"] and described["inputs"] and described["outputs"] and described["variants"]
        (tmp_path / "mine.cu").write_text(described["simplest_source"])
        judged = await call("judge", file="mine.cu", problems=["(n=1000)"], seed=7)
        assert (judged["verdict"], judged["seed"], judged["faults"]) == ("accepted", 7, [])
        assert (tmp_path / judged["document"]).is_file()
        ran = await call("run", file="mine.cu", problems=["(n=1000)"])
        assert ran["cases"][0]["status"] == "right" and (tmp_path / ran["results"]).is_dir()
        assert ran["backend"] == "cuda" or ran["cases"][0]["median_s"] is None

    session(tmp_path, work)


def test_a_client_sees_at_most_eight_tools_with_descriptions_and_schemas(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        tools = call.tools  # type: ignore[attr-defined]
        assert [tool.name for tool in tools] == list(TOOLS) and len(tools) <= 8
        for tool in tools:
            assert tool.description and tool.output_schema["properties"]["next_step"]
        page = (ROOT / "docs" / "agents.md").read_text()
        assert [name for name in TOOLS if f"| `{name}` |" not in page] == []

    session(tmp_path, work)


def test_a_kernel_does_not_leave_the_cage(tmp_path: Path) -> None:
    """A kernel that reads a file of the host is refused by the compiler in the cage, whichever tool runs it."""
    secret = tmp_path.parent / "canary.txt"
    secret.write_text('"canary"')
    (tmp_path / "reader.cu").write_text(
        source("relu", "scalar").replace("extern", f'const char* stolen =\n#include "{secret}"\n;\nextern', 1)
    )

    async def work(call: Call) -> None:
        checked = await call("check", file="reader.cu")
        assert checked["status"] == "failed" and "canary" not in json.dumps(checked["faults"]).replace(str(secret), "")
        explained = await call("explain", file="reader.cu")
        assert "error" in explained

    session(tmp_path, work)
