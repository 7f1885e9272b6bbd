"""The rows of `agent chat list` and `/resume`: age, turns, cost and first message of each conversation."""

from datetime import UTC, datetime

from msgspec import Struct, to_builtins
from pydantic import JsonValue
from rich.cells import cell_len, set_cell_size

from metier.cli.shared.output import printable
from metier.runtime.chat.chats import MAX_RUNS, is_turn, list_chats
from metier.runtime.records.index_rows import find_row_cost
from metier.runtime.runs import Runtime
from metier.store.contexts import ContextState
from metier.telemetry.amounts import format_age, format_cost, format_count
from metier.telemetry.excerpt import one_line

_MIN_MESSAGE_WIDTH = 20
# A conversation without a name has an ID in the format of run IDs, which is this long.
_ID_WIDTH = 28


class ListedChat(Struct, frozen=True, kw_only=True):
    context_id: str
    status: str
    turns: int
    cost_usd: float | None
    """Includes the runs that summarized it; None if a price is unknown."""
    first_message: str
    last_message: str
    updated_at: datetime

    def as_json(self) -> dict[str, JsonValue]:
        return {**to_builtins(self), "updated_at": self.updated_at.isoformat(timespec="seconds")}

    def render(self, *, width: int) -> str:
        """`2 h  4 turns  $0.021  Translate the note  20260102-030405-…`."""
        age = format_age((datetime.now(UTC) - self.updated_at).total_seconds())
        start = f"{age:>6}  {format_count(self.turns, 'turn'):>8}  {format_cost(self.cost_usd):>12}"
        room = max(_MIN_MESSAGE_WIDTH, width - cell_len(start) - _ID_WIDTH - 4)
        message = one_line(printable(self.first_message), room)
        # By cells, because a Chinese letter or an emoji is two columns wide.
        return f"{start}  {set_cell_size(message, max(room, cell_len(message)))}  {self.context_id}"


async def list_chats_with_messages(runtime: Runtime, *, limit: int) -> list[ListedChat]:
    """List conversations, most recently used first."""
    return [await _read(runtime, state) for state in await list_chats(runtime, limit=limit)]


async def _read(runtime: Runtime, state: ContextState) -> ListedChat:
    runs = await runtime.store.list_runs(context_id=state.context_id, limit=MAX_RUNS)
    turns = [row for row in runs if is_turn(row)]
    costs = [find_row_cost(row) for row in runs]
    return ListedChat(
        context_id=state.context_id,
        status=state.task_state,
        turns=len(turns),
        cost_usd=None if None in costs else round(sum(cost or 0.0 for cost in costs), 6),
        # The store lists the newest run first.
        first_message=turns[-1].task if turns else "",
        last_message=turns[0].task if turns else "",
        updated_at=state.updated_at,
    )
