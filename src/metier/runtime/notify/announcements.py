"""Notifications in the outbox, written before the entry that they are about."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from pydantic import JsonValue

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelReplied
from metier.engine.entries.question import ApprovalAsked
from metier.engine.entries.run import RunFailed, RunFinished, RunPaused
from metier.engine.journal import RunLog
from metier.errors import ConfigError, StoreError
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host
from metier.runtime.notify.a2a import build_cancel, build_pushes
from metier.runtime.notify.command import check_notify_command
from metier.runtime.notify.outbox_messages import Subject, build_row
from metier.runtime.status import USER_PAUSES
from metier.store.base import Store
from metier.store.outbox import OutboxRow

SHARE = 0.8
"""Fraction of the budget from which its end is announced."""
_TEXT_CHARACTERS = 500


def check_notify(host: Host) -> None:
    """Raise `ConfigError` if messages could not be signed, or the command may not run."""
    notify = host.settings.notify
    check_notify_command(host)
    if notify.webhook_url and not host.environ.get(notify.webhook_secret_env):
        raise ConfigError(
            f"notify.webhook_url is set, and {notify.webhook_secret_env}, by which messages are signed, is not",
            hint=f"Set {notify.webhook_secret_env} to a secret that the receiver knows too",
        )


_TOLD = (RunPaused, RunFinished, RunFailed, ModelReplied)
"""Entries that a message may be about."""


class Announcer:
    """Checks entries that are about to be written."""

    def __init__(self, host: Host, store: Store) -> None:
        self._host = host
        self._store = store

    async def __call__(self, log: RunLog, entries: Sequence[Entry]) -> None:
        if not any(isinstance(entry, _TOLD) for entry in entries):
            return
        asked = [entry.approval_id for entry in entries if isinstance(entry, ApprovalAsked)]
        rows = [
            row
            for number, entry in enumerate(entries, start=1)
            for row in self._build(log, entry, number=number, asked=asked)
        ]
        # A store without room must keep the entry itself: a message may be lost for it.
        with suppress(StoreError):
            rows += build_cancel(log, entries, host=self._host)
            rows += await build_pushes(log, entries, host=self._host, store=self._store)
            if rows:
                await self._store.outbox.put(rows)

    def _build(self, log: RunLog, entry: Entry, *, number: int, asked: Sequence[str]) -> Iterable[OutboxRow]:
        word = get_word(log, entry)
        notify = self._host.settings.notify
        if not word or word not in notify.events or not notify.channels:
            return
        subject = Subject(log.state.run_id, log.state.seq + number)
        message: dict[str, JsonValue] = {**self._describe(log, entry, word), "approvals": [*asked]}
        # One word about a budget, however many replies come after it.
        budget = f"{subject.run_id}:budget:{log.state.limits.max_cost_usd}" if word == "budget" else ""
        for channel in notify.channels:
            name = f"{budget}:{channel}" if budget else ""
            yield build_row(self._host, subject, message, channel=channel, name=name)

    def _describe(self, log: RunLog, entry: Entry, word: str) -> dict[str, JsonValue]:
        state = log.state
        assert state.started is not None
        text, status = _get_text(entry)
        clean = build_host_cleaner(self._host).text
        return {
            "type": f"run.{word}",
            "run_id": state.run_id,
            "parent_run_id": state.started.parent_run_id,
            "workspace": self._host.workspace.name,
            "task": clean(state.started.task)[:_TEXT_CHARACTERS],
            "status": status or state.status,
            "message": clean(text)[:_TEXT_CHARACTERS],
            "cost_usd": state.cost_usd,
            "max_cost_usd": state.limits.max_cost_usd,
            "at": self._host.clock.now().isoformat(),
        }


def get_word(log: RunLog, entry: Entry) -> str:
    """Return the name of the entry in `notify.events`; empty for most."""
    state = log.state
    match entry:
        case RunPaused():
            # Other pauses, such as a signal, are the user's own doing or end by themselves.
            word = "approval" if entry.pause == "approval" else "input"
            return word if entry.pause in USER_PAUSES else ""
        case RunFinished() | RunFailed():
            # Work that was handed on ends within the run above it, which tells of itself.
            is_own = state.started is not None and not (state.started.order and state.started.parent_run_id)
            return "ended" if is_own else ""
        case ModelReplied():
            limit = state.limits.max_cost_usd
            return "budget" if limit is not None and state.cost_usd + entry.cost_usd >= SHARE * limit else ""
        case _:
            return ""


def _get_text(entry: Entry) -> tuple[str, str]:
    match entry:
        case RunPaused():
            return entry.reason, "paused"
        case RunFinished():
            return entry.result, "completed"
        case RunFailed():
            return f"{entry.message} ({entry.reason})", entry.status
        case _:
            return "Four fifths of the budget are spent", ""
