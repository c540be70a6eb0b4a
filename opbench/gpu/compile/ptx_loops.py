"""Find the basic blocks and the loops of a PTX function."""

from __future__ import annotations

import bisect
import re
from functools import cached_property

from opbench.gpu.compile.natural_loops import Loop, natural_loops
from opbench.gpu.compile.ptx_statements import Function, Statement

_LABEL = re.compile(r"^[ \t{]*(?P<name>\$?[A-Za-z_][\w$]*):(?!:)", re.MULTILINE)
_ENDS = ("bra", "brx", "ret", "exit", "trap")
"""Instructions that end a basic block."""


class ControlFlow:
    """The basic blocks of a function; a block is a range of indices of statements."""

    def __init__(self, function: Function, text: str) -> None:
        """Split a function of the module `text` into blocks. Branches to unknown targets make `loops` empty."""
        self.statements = function.statements
        starts = [statement.start for statement in self.statements]
        self.labels: dict[int, int] = {}
        """For each block with a label, the position of its first label in the text."""
        label_positions: dict[str, list[int]] = {}
        label_statements = []
        for match in _LABEL.finditer(text, function.start, function.end):
            position = match.start("name")
            label_positions.setdefault(match["name"], []).append(position)
            label_statements.append((position, bisect.bisect_left(starts, position)))
        leaders = {0, *(index for _, index in label_statements)}
        leaders |= {index + 1 for index, statement in enumerate(self.statements) if statement.base in _ENDS}
        bounds = sorted(index for index in leaders if index < len(self.statements))
        self.blocks = [
            range(first, last) for first, last in zip(bounds, [*bounds[1:], len(self.statements)], strict=True)
        ]
        self.block_of = [block for block, indices in enumerate(self.blocks) for _ in indices]
        for position, index in label_statements:
            if index < len(self.statements):
                block = self.block_of[index]
                self.labels[block] = min(position, self.labels.get(block, position))
        self._has_unknown_target = False
        self.successors = [self._successors(block, label_positions, starts) for block in range(len(self.blocks))]
        self.predecessors: list[list[int]] = [[] for _ in self.blocks]
        for block, targets in enumerate(self.successors):
            for target in targets:
                self.predecessors[target].append(block)

    def terminator(self, block: int) -> Statement:
        """Return the last instruction of a block."""
        return self.statements[self.blocks[block][-1]]

    def _successors(self, block: int, labels: dict[str, list[int]], starts: list[int]) -> list[int]:
        last = self.terminator(block)
        following = [block + 1] if block + 1 < len(self.blocks) else []
        if last.base in ("ret", "exit", "trap"):
            return following if last.guard else []
        if last.base not in ("bra", "brx"):
            return following
        positions = labels.get(last.operands[0], [])
        if last.base == "brx" or not positions:
            self._has_unknown_target = True
            return following
        # Inline assembly may repeat a label in scopes of its own: the nearest one is in the same scope.
        index = bisect.bisect_left(starts, min(positions, key=lambda position: abs(position - last.start)))
        targets = [self.block_of[index]] if index < len(starts) else []
        return [*targets, *(following if last.guard else [])]

    @cached_property
    def loops(self) -> dict[int, Loop]:
        """The natural loops by header; none if the target of a jump is not known."""
        return {} if self._has_unknown_target else natural_loops(self.successors)

    def loops_around(self, block: int) -> list[Loop]:
        """Return the loops that contain a block, the outermost first."""
        around = [loop for loop in self.loops.values() if block in loop.blocks]
        return sorted(around, key=lambda loop: -len(loop.blocks))
