"""Place the boxes of a network's graph and route its edges: ranks from top to bottom, long edges at the side.

Ranks are longest paths from the inputs (the first step of Sugiyama, Tagawa and Toda, 1981). A network whose
long edges connect its beginning with its end, such as UNet, is folded into two columns, down and then up, so
that they stay short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Position = tuple[float, float]
Edge = tuple[str, str]

FOLD_FROM = 14
"""Number of ranks from which a network with long edges is folded."""
LANE_WIDTH = 9.0
STUB_LENGTH = 12.0
NEAR_SHARE = 0.22
"""Part of a gap at which edges turn before the box that they lead to; the rest is for the text with the shape."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of boxes and gaps, in points."""

    width: float = 292.0
    height: float = 33.0
    gap: float = 19.0
    box_gap: float = 14.0
    """Gap between boxes of one rank."""


@dataclass(frozen=True)
class Box:
    """The position of an item: its centre, and the direction of its column."""

    x: float
    y: float
    column: int
    row: int
    upward: bool
    leftmost: bool
    rightmost: bool


@dataclass(frozen=True)
class Layout:
    """The positions of all items and edges; y grows downwards."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    routes: Mapping[Edge, Sequence[Position]]
    sizes: Sizes


def layered_layout(items: Sequence[str], edges: Sequence[Edge]) -> Layout:
    """Place items in ranks and route the edges between them.

    Items are in topological order; `edges` lead from earlier items to later ones.
    """
    ranks = longest_paths(items, edges)
    fold = best_fold(ranks, edges)
    last_rank = max(ranks.values(), default=0)
    one_column = fold == last_rank and len(set(ranks.values())) == len(ranks)
    sizes = Sizes(width=400.0) if one_column else Sizes()
    cells = {item: _cell_of_rank(rank, fold, last_rank) for item, rank in ranks.items()}
    lanes = _assign_lanes(cells, edges)
    margins = [len({lane for side, lane in lanes.values() if side == channel}) for channel in (0, 1, 2)]
    boxes, column_ends = _place_boxes(items, cells, margins, sizes)
    routes = {
        edge: _long_route(boxes, edge, *lanes[edge], column_ends, sizes)
        if edge in lanes
        else _short_route(boxes, edge, sizes)
        for edge in edges
    }
    rows = 1 + max((row for _, row in cells.values()), default=-1)
    height = rows * (sizes.height + sizes.gap) + sizes.gap / 2
    return Layout(column_ends[-1][1] + _channel_width(margins[2]), height, boxes, routes, sizes)


def longest_paths(items: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Return the rank of each item: the length of the longest path to it.

    An item without inputs is just above its reader.
    """
    ranks: dict[str, int] = {}
    for item in items:
        ranks[item] = 1 + max((ranks[a] for a, b in edges if b == item), default=-1)
    for item in items:
        used = [ranks[b] for a, b in edges if a == item]
        if used and not any(b == item for _, b in edges):
            ranks[item] = min(used) - 1
    return ranks


def best_fold(ranks: Mapping[str, int], edges: Sequence[Edge]) -> int:
    """Return the last rank in the first column; the last of all ranks if a second column shortens no edge."""
    last_rank = max(ranks.values(), default=0)
    spans = [ranks[b] - ranks[a] for a, b in edges]
    if last_rank < FOLD_FROM or max(spans, default=0) <= last_rank / 3:
        return last_rank

    def length(fold: int) -> int:
        rows = {item: _cell_of_rank(rank, fold, last_rank)[1] for item, rank in ranks.items()}
        return sum(abs(rows[a] - rows[b]) for a, b in edges) + max(rows.values())

    return min(range(last_rank // 3, last_rank), key=length)


def _cell_of_rank(rank: int, fold: int, last_rank: int) -> tuple[int, int]:
    """Return the column and the row of a box of a rank.

    The second column runs upwards and starts next to the end of the first.
    """
    shift = max(0, last_rank - 1 - 2 * fold)  # a second column longer than the first starts above it
    return (0, rank + shift) if rank <= fold else (1, 2 * fold + 1 - rank + shift)


def _assign_lanes(cells: Mapping[str, tuple[int, int]], edges: Sequence[Edge]) -> dict[Edge, tuple[int, int]]:
    """Return the channel and the lane of each long edge.

    A channel is left of the boxes, between the columns, or right of them. Intervals of rows get lanes greedily,
    so that two edges in one lane never cross.
    """
    has_two_columns = any(column for column, _ in cells.values())
    intervals: list[tuple[int, int, int, Edge]] = []
    for a, b in edges:
        (column, row), (other, end) = cells[a], cells[b]
        if column == other and abs(row - end) <= 1:
            continue
        changes_column = column != other
        side = 1 if changes_column else 0 if has_two_columns and column == 0 else 2
        if changes_column and row == end and abs(row - end) == 0 and _are_neighbours(cells, a, b):
            continue
        intervals.append((side, min(row, end), max(row, end), (a, b)))
    lanes_of_edge: dict[Edge, tuple[int, int]] = {}
    busy: dict[tuple[int, int], int] = {}
    for side, low, high, edge in sorted(intervals, key=lambda w: (w[0], w[1], w[2])):
        lane = next(lane for lane in range(len(edges)) if busy.get((side, lane), -1) < low)
        busy[side, lane] = high
        lanes_of_edge[edge] = (side, lane)
    return lanes_of_edge


def _are_neighbours(cells: Mapping[str, tuple[int, int]], a: str, b: str) -> bool:
    """Return whether a straight line between two items crosses no other box: each item is alone in its rank."""
    return all(sum(cell == cells[item] for cell in cells.values()) == 1 for item in (a, b))


def _channel_width(lanes: int) -> float:
    return 2 * STUB_LENGTH + LANE_WIDTH * max(0, lanes - 1) if lanes else STUB_LENGTH


def _place_boxes(
    items: Sequence[str], cells: Mapping[str, tuple[int, int]], margins: Sequence[int], sizes: Sizes
) -> tuple[dict[str, Box], list[tuple[float, float]]]:
    """Return the box of every item, and the start and end of each column."""
    ranks: dict[tuple[int, int], list[str]] = {}
    for item in items:
        ranks.setdefault(cells[item], []).append(item)
    boxes: dict[str, Box] = {}
    column_ends: list[tuple[float, float]] = []
    x = _channel_width(margins[0])
    for column in range(1 + max((c for c, _ in ranks), default=0)):
        widest = max(len(items_in_rank) for (c, _), items_in_rank in ranks.items() if c == column)
        width = widest * sizes.width + (widest - 1) * sizes.box_gap
        column_ends.append((x, x + width))
        for (c, row), items_in_rank in ranks.items():
            if c != column:
                continue
            first_centre = x + width / 2 - (len(items_in_rank) - 1) * (sizes.width + sizes.box_gap) / 2
            for position, item in enumerate(items_in_rank):
                centre = first_centre + position * (sizes.width + sizes.box_gap)
                y = (row + 0.5) * (sizes.height + sizes.gap)
                boxes[item] = Box(centre, y, c, row, c == 1, position == 0, position == len(items_in_rank) - 1)
        x += width + max(_channel_width(margins[1]), 3 * STUB_LENGTH)
    return boxes, column_ends


def _short_route(boxes: Mapping[str, Box], edge: Edge, sizes: Sizes) -> list[Position]:
    """Return the route between adjacent ranks, or from the end of one column to the start of the next."""
    a, b = (boxes[item] for item in edge)
    if a.column != b.column:
        return [(a.x + sizes.width / 2, a.y), (b.x - sizes.width / 2, b.y)]
    direction = -1 if a.upward else 1
    begin, end = (a.x, a.y + direction * sizes.height / 2), (b.x, b.y - direction * sizes.height / 2)
    if a.x == b.x:
        return [begin, end]
    turn_y = end[1] - direction * NEAR_SHARE * sizes.gap
    return [begin, (a.x, turn_y), (b.x, turn_y), end]


def _long_route(
    boxes: Mapping[str, Box], edge: Edge, side: int, lane: int, column_ends: Sequence[tuple[float, float]], sizes: Sizes
) -> list[Position]:
    """Return the route of a long edge: out at the source's side, along its lane, in at the target's side."""
    a, b = (boxes[item] for item in edge)
    x = (
        column_ends[0][0] - STUB_LENGTH - lane * LANE_WIDTH
        if side == 0
        else column_ends[0 if side == 1 else -1][1] + STUB_LENGTH + lane * LANE_WIDTH
    )
    leaves = _stub_route(a, out=True, to_left=side == 0, sizes=sizes)
    enters = _stub_route(b, out=False, to_left=side in (0, 1), sizes=sizes)
    return [*leaves, (x, leaves[-1][1]), (x, enters[-1][1]), *reversed(enters)]


def _stub_route(box: Box, *, out: bool, to_left: bool, sizes: Sizes) -> list[Position]:
    """Return the route from a box to the position from which a horizontal line reaches the channel."""
    if box.leftmost if to_left else box.rightmost:
        # Edges leave below the middle and enter above it, so that the two never overlap.
        shift = (1 if out else -1) * (-1 if box.upward else 1) * sizes.height / 6
        return [(box.x + (-1 if to_left else 1) * sizes.width / 2, box.y + shift)]
    direction = (1 if out else -1) * (-1 if box.upward else 1)
    edge = box.y + direction * sizes.height / 2
    return [(box.x, edge), (box.x, edge + direction * (1 - NEAR_SHARE if out else NEAR_SHARE) * sizes.gap)]
