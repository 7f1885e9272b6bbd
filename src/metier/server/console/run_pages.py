"""Pages of one run: its steps, its state at any entry, its model calls and prompts; fork, undo, export."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from msgspec import Struct
from starlette.responses import Response

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted
from metier.errors import UsageError
from metier.providers.facts import Prices
from metier.runtime.history.archive import render_archive
from metier.runtime.history.forks import ForkRequest, Point, find_points
from metier.runtime.history.prompts import ShownLayer, ShownPrompt, compare, show_turn
from metier.runtime.history.replays import replay_run
from metier.runtime.history.run_details import list_artifacts, read_artifact, read_exchange, read_moment
from metier.runtime.history.run_views import read_run_view, read_step_diffs, render_shared_run
from metier.runtime.history.transfer import export_run
from metier.runtime.history.undo import CANNOT, plan_undo, undo
from metier.runtime.inbox import find_waiting_run
from metier.runtime.records.index_rows import get_shown_status
from metier.runtime.runs import Runtime
from metier.server.api.bodies import answer_file
from metier.server.console.inbox_cards import build_waiting_card
from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.run_actions import RETRIABLE, fork, retry
from metier.store.base import ENDED, RunRow
from metier.views.run_view import RunView, mark_interrupted
from metier.views.waterfall import Gap, Row, Waterfall, build_waterfall


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
        turns=tuple(TreeTurn(number=turn.number, nodes=_nest(turn.rows, addresses)) for turn in fall.turns),
        gaps=fall.gaps,
        busy_seconds=fall.busy_seconds,
        total_seconds=fall.total_seconds,
    )


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


router = APIRouter(include_in_schema=False, route_class=PageRoute)


async def _get_run(page: Here, name: str) -> RunRow:
    return await page.state.runtime.find(name)


type ThisRun = Annotated[RunRow, Depends(_get_run)]
"""The run of the path: an ID, a prefix of one, or `latest`."""


class RowDetails(Struct, frozen=True, kw_only=True):
    """Details of a tree row in addition to the row itself."""

    before: str
    """The address of the previous row; empty for the first one."""
    after: str
    change: str
    """The files that the step changed, as a unified diff."""
    fork_point: Point | None
    """Entry at which a rerun starts; None if the run can't be forked before this row."""


@router.get("/runs/{name}")
async def show_run(page: Here, row: ThisRun, step: str = "") -> Response:
    return await _render_run(page, row, "run.html", step=step)


@router.get("/runs/{name}/body")
async def show_body(page: Here, row: ThisRun, step: str = "") -> Response:
    """Return the part of the page that changes while the run continues."""
    return await _render_run(page, row, "run_body.html", step=step)


@router.get("/runs/{name}/step")
async def show_step(page: Here, row: ThisRun, key: str) -> Response:
    """Render the details of one row of the tree, as a part of the page."""
    runtime = page.state.runtime
    entries = await runtime.read_entries(row.run_id)
    tree = build_tree(build_waterfall(await _read_view(runtime, row, entries)), row.run_id)
    selected = tree.find(key)
    if selected is None:
        raise UsageError(f"Run {row.run_id!r} has no step {key[:80]!r}", hint="Open the run and choose a step")
    details = await _read_details(page, row, tree, selected, entries)
    return await page.render(
        "run_step.html",
        "runs",
        run_id=row.run_id,
        task=row.task,
        is_over=row.status in ENDED,
        selected=selected,
        details=details,
    )


async def _render_run(page: Page, row: RunRow, template: str, *, step: str) -> Response:
    runtime = page.state.runtime
    # Read once, because reading a long journal takes most of the page's time.
    entries = await runtime.read_entries(row.run_id)
    view = await _read_view(runtime, row, entries)
    waiting = await find_waiting_run(runtime, row)
    has_moment = entries and template == "run.html"
    tree = build_tree(build_waterfall(view), row.run_id)
    chosen = tree.find(step)
    selected = chosen or tree.choose()
    return await page.render(
        template,
        "runs",
        row=row,
        run_id=row.run_id,
        shown_status=get_shown_status(row),
        is_over=row.status in ENDED,
        can_retry=row.status in RETRIABLE,
        question=build_waiting_card(waiting, runtime.host) if waiting is not None else None,
        view=view,
        tree=tree,
        selected=selected,
        is_chosen=chosen is not None,
        artifacts=await list_artifacts(runtime, row.run_id, entries=entries),
        entries=len(entries),
        task=row.task,
        moment=await read_moment(runtime, row.run_id, len(entries), entries=entries) if has_moment else None,
        details=await _read_details(page, row, tree, selected, entries) if selected is not None else None,
    )


async def _read_view(runtime: Runtime, row: RunRow, entries: Sequence[Entry]) -> RunView:
    """Read a view in which no step is running if no process drives the run."""
    view = await read_run_view(runtime, row.run_id, entries=entries)
    return mark_interrupted(view) if get_shown_status(row) in ("interrupted", "worker_lost") else view


async def _read_details(
    page: Page, row: RunRow, tree: RunTree, selected: TreeNode, entries: Sequence[Entry]
) -> RowDetails:
    addresses = tree.selectable
    position = addresses.index(selected.address)
    step, is_own = selected.row.step, selected.row.run_id == row.run_id
    change = ""
    if step is not None:
        changes = await read_step_diffs(page.state.runtime, row.run_id, entries=entries)
        change = changes.get(f"{selected.row.run_id}:{step.step_id}", "")
    return RowDetails(
        before=addresses[position - 1] if position else "",
        after=addresses[position + 1] if position + 1 < len(addresses) else "",
        change=change,
        fork_point=find_fork_point(selected.row, entries, find_points(row.run_id, entries)) if is_own else None,
    )


@router.post("/runs/{name}/retry")
async def retry_run(page: Here, row: ThisRun) -> Response:
    return page.go(f"/runs/{await retry(page.state, row.run_id)}?done=forked")


@router.get("/runs/{name}/at")
async def show_moment(page: Here, row: ThisRun, k: int = 1) -> Response:
    """Show the state after entry `k`."""
    moment = await read_moment(page.state.runtime, row.run_id, k)
    template = "moment_part.html" if page.is_part else "moment.html"
    return await page.render(template, "runs", run_id=row.run_id, task=row.task, moment=moment)


@router.get("/runs/{name}/calls")
async def go_to_exchange(page: Here, name: str, turn: int = 1) -> Response:
    return page.go(f"/runs/{name}/calls/{turn}")


@router.get("/runs/{name}/calls/{turn}")
async def show_exchange(page: Here, row: ThisRun, turn: int) -> Response:
    """Show the whole request and reply of a turn."""
    exchange = await read_exchange(page.state.runtime, row.run_id, turn)
    template = "exchange_part.html" if page.is_part else "exchange.html"
    return await page.render(template, "runs", run_id=row.run_id, task=row.task, exchange=exchange)


@router.get("/runs/{name}/replay")
async def show_replay(page: Here, row: ThisRun, files: Literal["pinned", "current"] = "pinned") -> Response:
    """Replay the run from its journal with all effects blocked, and show the first difference."""
    report = await replay_run(page.state.runtime, row.run_id, with_current_files=files == "current")
    return await page.render("replay.html", "runs", run_id=row.run_id, task=row.task, report=report, files=files)


@router.get("/runs/{name}/artifacts/{sha256}")
async def download_artifact(page: Here, row: ThisRun, sha256: str) -> Response:
    """Download an artifact. Browsers never show it as a page of this server."""
    artifact, data = await read_artifact(page.state.runtime, row.run_id, sha256)
    return answer_file(data, name=artifact.file.name)


@router.post("/runs/{name}/fork")
async def fork_here(page: Here, row: ThisRun) -> Response:
    form = await page.read_form()
    at = form.get("at", "")
    if not at.isdecimal() or len(at) > 9:
        raise UsageError("The entry to fork at is not a number", hint="Use the slider of the run")
    # Browsers send every line end of a form as CRLF, so an unchanged text would look changed.
    message = form.get("task", "").replace("\r\n", "\n").strip()
    # An unchanged message is not passed on: a new one would turn a task with steps into a plain message.
    edited = "" if message == row.task.strip() else message
    wanted = ForkRequest(at=int(at), model=form.get("model", "").strip(), task=edited)
    new_id = await fork(page.state, row.run_id, wanted)
    return page.go(f"/runs/{new_id}?done=forked")


@router.post("/runs/{name}/cancel")
async def cancel(page: Here, row: ThisRun) -> Response:
    await page.state.runtime.cancel(row.run_id, by=page.user.name)
    return page.go(f"/runs/{row.run_id}?done=canceled")


@router.get("/runs/{name}/undo")
async def show_undo(page: Here, row: ThisRun) -> Response:
    plan = await plan_undo(page.state.runtime, row.run_id)
    return await page.render("undo.html", "runs", run_id=row.run_id, task=row.task, plan=plan, cannot=CANNOT)


@router.post("/runs/{name}/undo")
async def undo_run(page: Here, row: ThisRun) -> Response:
    """Restore the files. Those that changed since are skipped unless the form says to overwrite them."""
    form = await page.read_form()
    plan = await plan_undo(page.state.runtime, row.run_id)
    await undo(page.state.runtime, plan, by=page.user.name, overwrite=form.get("overwrite") == "true")
    return page.go(f"/runs/{row.run_id}?done=undone")


@router.get("/runs/{name}/export")
async def export(page: Here, row: ThisRun) -> Response:
    data = render_archive(await export_run(page.state.runtime, row.run_id))
    return answer_file(data, name=f"{row.run_id}.metier-run")


@router.get("/runs/{name}/share")
async def share(page: Here, row: ThisRun) -> Response:
    text = await render_shared_run(page.state.runtime, row.run_id)
    return answer_file(text.encode(), name=f"{row.run_id}.html")


MAX_COLORS = 8


class LayerBar(Struct, frozen=True, kw_only=True):
    """One layer of the stacked bar."""

    layer: ShownLayer
    color: int
    at: float
    width: float
    """Both in percent of all bytes."""
    first_byte: int
    is_cached: bool
    """True if it ends before the first byte that differs from the previous turn."""
    was_cached: bool
    """True if the provider counted all tokens up to its end as cached."""
    price_usd: float | None
    """Price of its tokens; None if the model's price is unknown."""


@router.get("/runs/{name}/prompt")
async def show_prompt(page: Here, row: ThisRun, turn: int | None = None) -> Response:
    runtime = page.state.runtime
    view = await read_run_view(runtime, row.run_id, levels=0)
    turns = sorted({call.turn for call in view.calls})
    if not turns:
        raise UsageError("This run has no model calls", hint="Its steps may be child runs")
    shown = await show_turn(runtime, row.run_id, turn=turn)
    before = await _find_before(runtime, row.run_id, shown, turns)
    difference = compare(before, shown) if before is not None else None
    shared = difference.offset if difference is not None else shown_bytes(shown) if before is not None else 0
    call = next((each for each in view.calls if each.turn == shown.turn), None)
    return await page.render(
        "prompt.html",
        "runs",
        run_id=row.run_id,
        task=row.task,
        shown=shown,
        turns=turns,
        call=call,
        before=before,
        difference=difference,
        broke_at=round(100 * shared / (shown_bytes(shown) or 1), 3) if before is not None else 0,
        bars=build_bars(shown, shared=shared, cached=call.usage.cached_tokens if call is not None else 0),
    )


async def _find_before(runtime: Runtime, run_id: str, shown: ShownPrompt, turns: list[int]) -> ShownPrompt | None:
    earlier = [each for each in turns if each < shown.turn]
    return await show_turn(runtime, run_id, turn=earlier[-1]) if earlier else None


def shown_bytes(shown: ShownPrompt) -> int:
    return sum(layer.bytes for layer in shown.layers)


def build_bars(shown: ShownPrompt, *, shared: int, cached: int = 0) -> tuple[LayerBar, ...]:
    """Build a bar for each layer, in the order in which they are sent.

    `shared` is the number of bytes in common with the previous turn, `cached` the number of tokens that were cached.
    """
    total = shown_bytes(shown) or 1
    bars: list[LayerBar] = []
    at = tokens = 0
    for number, layer in enumerate(shown.layers):
        tokens += layer.tokens
        was_cached = 0 < tokens <= cached
        bars.append(
            LayerBar(
                layer=layer,
                color=number % MAX_COLORS + 1,
                at=round(100 * at / total, 3),
                width=round(100 * layer.bytes / total, 3),
                first_byte=at,
                is_cached=at + layer.bytes <= shared,
                was_cached=was_cached,
                price_usd=_find_price(layer.tokens, shown.prices, is_cached=was_cached),
            )
        )
        at += layer.bytes
    return tuple(bars)


def _find_price(tokens: int, prices: Prices | None, *, is_cached: bool) -> float | None:
    if prices is None:
        return None
    rate = prices.cache_read if is_cached and prices.cache_read is not None else prices.input
    return tokens * rate / 1_000_000
