"""Find the loops among basic blocks, of PTX or of machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """A natural loop: blocks that repeat, with one block through which they are entered."""

    header: int
    blocks: frozenset[int]
    latches: tuple[int, ...]
    """The blocks that jump back to the header."""


def natural_loops(successors: Sequence[Sequence[int]]) -> dict[int, Loop]:
    """Return the loops by header, from the blocks that may follow each block; jumps to one header make one loop."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for block, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(block)
    dominators = _dominators(predecessors)
    latches: dict[int, list[int]] = {}
    for block, targets in enumerate(successors):
        for target in targets:
            if target in dominators[block]:
                latches.setdefault(target, []).append(block)
    loops = {}
    for header, ends in latches.items():
        blocks, stack = {header}, list(ends)
        while stack:
            block = stack.pop()
            if block not in blocks:
                blocks.add(block)
                stack += predecessors[block]
        loops[header] = Loop(header, frozenset(blocks), tuple(ends))
    return loops


def innermost_blocks(successors: Sequence[Sequence[int]]) -> set[int]:
    """Return the blocks of the loops that contain no other loop."""
    loops = natural_loops(successors).values()
    return {block for loop in loops if not any(other.blocks < loop.blocks for other in loops) for block in loop.blocks}


def _dominators(predecessors: Sequence[Sequence[int]]) -> list[set[int]]:
    """Return the blocks through which every path to each block leads, itself included; none for dead code."""
    everything = set(range(len(predecessors)))
    dominators = [{0} if block == 0 else everything for block in range(len(predecessors))]
    changed = True
    while changed:
        changed = False
        for block in range(1, len(predecessors)):
            if not predecessors[block]:
                continue
            new = set.intersection(*(dominators[before] for before in predecessors[block])) | {block}
            if new != dominators[block]:
                dominators[block], changed = new, True
    return [blocks if blocks is not everything else set() for blocks in dominators]
