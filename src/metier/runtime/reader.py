"""Queries about the runs of a workspace: find one by name, read its state, status and approvals."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from metier.engine.entries.entry import Entry
from metier.engine.journal import read_entries
from metier.engine.state.fold import fold
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.ids import CHILD
from metier.runtime.approval_questions import Approvals
from metier.runtime.host import Host
from metier.runtime.present_policy import get_edit_denial, preview_call
from metier.runtime.records.run_folders import get_run_folder
from metier.runtime.records.run_log import describe_lost_run, find_lost_run
from metier.runtime.status import RunStatus, get_status, get_waiting, list_all_waiting
from metier.store.base import RunRow, Store
from metier.store.failures import RunUnknown


class RunReader:
    """Queries about the runs of one workspace. They write nothing, except that they close expired approvals."""

    def __init__(self, host: Host, store: Store) -> None:
        self.host = host
        self.store = store
        refuse = partial(get_edit_denial, host=host, store=store)
        self.approvals = Approvals(store, host.clock, look=partial(preview_call, host), refuse=refuse)

    def folder(self, run_id: str) -> Path:
        return get_run_folder(self.host, run_id)

    async def read_entries(self, run_id: str, *, after: int = 0) -> list[Entry]:
        """Return the entries after number `after`. An unknown run has none."""
        return await read_entries(self.store, run_id, after=after)

    async def read(self, run_id: str) -> RunState:
        """Read the state of a run without driving it."""
        return fold(run_id, await read_entries(self.store, run_id))

    async def find(self, name: str) -> RunRow:
        """Return a run by ID, unique prefix, or `latest`. Raises `RunUnknown`, `UsageError` if ambiguous."""
        prefix = "" if name == "latest" else name
        # An empty name, for example from an unset shell variable, would match every run: it must not cancel one.
        # Two rows are enough to detect an ambiguous prefix. IDs are ASCII, so other text matches none.
        rows = await self.store.list_runs(prefix=prefix, limit=2) if name and name.isascii() else []
        await self._check_folders(name, rows)
        if not rows:
            raise RunUnknown(
                f"There is no run {name!r}", hint="Run `agent runs list` to list the runs of this workspace"
            )
        if name == "latest":
            return await self._get_top(rows[0])
        if len(rows) > 1 and rows[0].run_id != name:
            raise UsageError(f"More than one run starts with {name!r}", hint="Add more characters of the ID")
        return rows[0]

    async def _check_folders(self, name: str, rows: Sequence[RunRow]) -> None:
        """Raise `StoreDamaged` for a run that has a folder but is not in the store."""
        # Other machines may have deleted runs from a database server. A damaged local file has lost its newest runs.
        may_lack = not rows or (name == "latest" and self.host.settings.store.backend == "sqlite")
        if not name or not name.isascii() or not may_lack:
            return
        lost = find_lost_run(self.host.runs, name, shard=self.host.settings.logging.shard)
        if lost is None or (rows and (lost.name < rows[0].run_id or lost.name.startswith(CHILD))):
            return
        # Of two runs that started in the same second, the older one may have the greater ID.
        if await self.store.find_run(lost.name) is None:
            raise describe_lost_run(lost)

    async def get_started(self, run_id: str) -> RunRow:
        """Return the run that a user started: this one or its ancestor. Raises `RunUnknown`."""
        return await self._get_top(await self.find(run_id))

    async def _get_top(self, row: RunRow) -> RunRow:
        while row.run_id.startswith(CHILD) and (parent := await self.store.find_run(row.parent_run_id)) is not None:
            row = parent
        return row

    async def get_status(self, run_id: str) -> RunStatus:
        """Return the status of a run with its descendants. Raises `RunUnknown`."""
        return await get_status(self.store, await self.read(run_id))

    async def get_waiting(self, state: RunState) -> RunState:
        """Return the state of the run that waits: the run itself, or its deepest descendant."""
        return await get_waiting(self.store, state)

    async def list_all_waiting(self, state: RunState) -> list[RunState]:
        """List all waiting runs: several descendants can wait at the same time."""
        return await list_all_waiting(self.store, state)
