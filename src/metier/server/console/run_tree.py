"""The tree of a run: its turns, calls, steps and child runs, each with an address of its own. Pure."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted
from metier.runtime.history.forks import Point
from metier.views.waterfall import Gap, Row, Turn, Waterfall


class TreeNode(Struct, frozen=True, kw_only=True):
    row: Row
    address: str
    """Names the row in the URL of the page; empty for a note, which has no details."""
    children: tuple["TreeNode", ...] = ()

    def walk(self) -> Iterator["TreeNode"]:
        yield self
        for child in self.children:
            yield from child.walk()


class TreeTurn(Struct, frozen=True, kw_only=True):
    number: int
    nodes: tuple[TreeNode, ...]

    def walk(self) -> Iterator[TreeNode]:
        for node in self.nodes:
            yield from node.walk()

    @property
    def steps(self) -> int:
        return sum(node.row.step is not None for node in self.walk())

    @property
    def failed(self) -> int:
        return sum(node.row.is_failed for node in self.walk())

    @property
    def seconds(self) -> float:
        """The time of its calls and steps, without that of child runs, which their steps include."""
        return sum(node.row.seconds for node in self.nodes)


class RunTree(Struct, frozen=True, kw_only=True):
    turns: tuple[TreeTurn, ...]
    gaps: tuple[Gap, ...]
    busy_seconds: float
    total_seconds: float

    def walk(self) -> Iterator[TreeNode]:
        for turn in self.turns:
            yield from turn.walk()

    @property
    def failures(self) -> tuple[str, ...]:
        """Return the addresses of failed rows, in order."""
        return tuple(node.address for node in self.walk() if node.row.is_failed)

    @property
    def selectable(self) -> tuple[str, ...]:
        return tuple(node.address for node in self.walk() if node.address)

    def find(self, address: str) -> TreeNode | None:
        return next((node for node in self.walk() if node.address == address), None) if address else None

    def choose(self) -> TreeNode | None:
        """Return the node whose details are shown if the reader chose none: the first failure, else the last step."""
        nodes = [node for node in self.walk() if node.address]
        failed = next((node for node in nodes if node.row.is_failed), None)
        return failed or next((node for node in reversed(nodes) if node.row.step is not None), None)


def build_tree(fall: Waterfall, run_id: str) -> RunTree:
    addresses = _Addresses(run_id)
    return RunTree(
        turns=tuple(_build_turn(turn, addresses) for turn in fall.turns),
        gaps=fall.gaps,
        busy_seconds=fall.busy_seconds,
        total_seconds=fall.total_seconds,
    )


def _build_turn(turn: Turn, addresses: "_Addresses") -> TreeTurn:
    return TreeTurn(number=turn.number, nodes=_nest(turn.rows, addresses))


def _nest(rows: Sequence[Row], addresses: "_Addresses") -> tuple[TreeNode, ...]:
    """Nest the rows of a child run below its own row."""
    nodes: list[TreeNode] = []
    position = 0
    while position < len(rows):
        row = rows[position]
        end = position + 1
        if row.kind == "child":
            while end < len(rows) and rows[end].depth > row.depth:
                end += 1
        address = addresses.build(row)
        nodes.append(TreeNode(row=row, address=address, children=_nest(rows[position + 1 : end], addresses)))
        position = end
    return tuple(nodes)


class _Addresses:
    """Addresses stay the same while the run continues, because they depend on earlier rows only."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._known: set[str] = set()

    def build(self, row: Row) -> str:
        if row.kind == "note":
            return ""
        if row.kind == "child":
            name = row.key
        else:
            name = row.step.step_id if row.step is not None else f"call-{row.turn}" if row.call is not None else ""
            # A text has no name of its own; its key ends with its position.
            name = name or f"text-{row.key.rpartition('-i')[2]}"
            if row.run_id != self._run_id:
                name = f"{row.run_id}~{name}"
        # A second call in a turn repairs a reply that could not be used.
        count, address = 1, name
        while address in self._known:
            count += 1
            address = f"{name}.{count}"
        self._known.add(address)
        return address


def find_fork_point(row: Row, entries: Sequence[Entry], points: Sequence[Point]) -> Point | None:
    """Return the last place before a call or step started at which the run can be forked."""
    number = _find_start(row, entries)
    return next((point for point in reversed(points) if point.number < number), None)


def _find_start(row: Row, entries: Sequence[Entry]) -> int:
    """Return the number of the first entry of a row; 0 if it has none."""
    for number, entry in enumerate(entries, start=1):
        if row.step is not None and getattr(entry, "step_id", "") == row.step.step_id:
            return number
        if row.call is not None and isinstance(entry, ModelCallStarted) and entry.turn == row.turn:
            return number
    return 0
