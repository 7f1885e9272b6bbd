"""What the runs of a workspace used, read from their event logs."""

from datetime import datetime, timedelta

from anyio.to_thread import run_sync

from metier.dataclass import dataclass
from metier.errors import LogError, UsageError
from metier.lazy_regex import lazy_regex
from metier.runtime.records.known_cost import TYPED
from metier.runtime.runs import Runtime
from metier.store.base import RunRow
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.views.spending import Spent, list_spent

_AGE = lazy_regex(r"(\d{1,5})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpending:
    spent: tuple[Spent, ...]
    runs: int
    """How many began in that time."""
    completed: int
    """Those of them that came to a result."""
    missing: int
    """Those of which there is no event log here."""


async def read_spent(runtime: Runtime, begun: datetime | None = None, *, context_id: str = "") -> ReadSpending:
    """Of runs that began since then, in one conversation or in all."""
    spent: list[Spent] = []
    runs = completed = missing = last = 0
    while page := await runtime.store.list_runs(context_id=context_id, before=last, limit=_PAGE):
        last = page[-1].number
        for row in page:
            if begun is not None and row.created_at < begun:
                continue
            runs += 1
            completed += row.status == "completed"
            found = await run_sync(_read_one, runtime, row)
            if found is None:
                missing += 1
            else:
                spent += found
    return ReadSpending(spent=tuple(spent), runs=runs, completed=completed, missing=missing)


def parse_since(text: str, *, now: datetime) -> datetime:
    """Raises `UsageError`."""
    if age := _AGE.fullmatch(text.strip().lower()):
        return now - timedelta(hours=int(age[1]) * _HOURS[age[2]])
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(f"{text!r} is no time", hint="Use 24h, 7d, 4w, or a date such as 2026-01-31") from error
    return moment if moment.tzinfo else moment.astimezone()


def _read_one(runtime: Runtime, row: RunRow) -> list[Spent] | None:
    try:
        # A command that a person typed into a chat is a run that no model answered.
        found = list_spent(read_events(runtime.folder(row.run_id) / FILE_NAME))
        return [each for each in found if each.model != f"{TYPED}/{TYPED}"]
    except LogError:
        return None
