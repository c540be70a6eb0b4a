"""The server of `opbench mcp`: the tools behind the Model Context Protocol, with the official SDK."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from opbench._version import __version__
from opbench.agents.tools import TOOLS, Tools
from opbench.errors import OpbenchError
from opbench.paths import MissingExtra

if TYPE_CHECKING:
    from mcp.server import MCPServer

INSTRUCTIONS = (
    "opbench checks, explains and times CUDA kernels; without a GPU it runs them on the CPU. Describe an operator, "
    "write a .cu file, then check, explain and judge it. Each answer ends with next_step: what to do, with which tool."
)
P = ParamSpec("P")
T = TypeVar("T")


def server(tools: Tools) -> MCPServer:
    """Return an MCP server that offers the tools; raise MissingExtra if the SDK is missing or too old."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise MissingExtra("opbench mcp needs the package mcp, version 2 or later", "mcp") from None

    call_lock = threading.Lock()

    def with_lock_and_tool_errors(tool: Callable[P, T]) -> Callable[P, T]:
        """Return a tool that runs one call at a time and reports opbench's errors to the client."""

        @functools.wraps(tool)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with call_lock:
                try:
                    return tool(*args, **kwargs)
                except OpbenchError as error:
                    raise ToolError(str(error)) from None

        return call

    mcp_server = MCPServer("opbench", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")
    for name in TOOLS:
        mcp_server.add_tool(with_lock_and_tool_errors(getattr(tools, name)), name=name)
    return mcp_server
