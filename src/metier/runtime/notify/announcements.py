"""Notifications in the outbox: to the user, push notifications to A2A callers, and cancellations of remote agents.

They are written before the entry that they are about. A crash in between leaves a message whose entry is missing, which
is never sent; in the other order the message would be lost.
"""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from pydantic import JsonValue

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelReplied
from metier.engine.entries.question import ApprovalAsked
from metier.engine.entries.run import RunFailed, RunFinished, RunPaused
from metier.engine.journal import RunLog
from metier.engine.state.fold import apply
from metier.errors import ConfigError, StoreError
from metier.ids import CHILD
from metier.providers.registry import REMOTE
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host
from metier.runtime.notify.a2a import RESTING, Target, build_task, get_task_state
from metier.runtime.notify.notify_command import check_notify_command
from metier.runtime.status import USER_PAUSES, RunStatus, compute_status
from metier.store.base import Store
from metier.store.outbox import OutboxRow, Receiver

SHARE = 0.8
"""Fraction of the budget at which a warning is sent."""
_TEXT_CHARACTERS = 500
PUSH = "a2a"
"""Channel of push notifications."""
CANCEL = "a2a-cancel"
"""Channel of cancellations."""
_MAX_RESULT_CHARACTERS = 100_000
"""Limit of a result in a message. A longer one is left out; the caller can fetch the task."""
_RESTS = (RunPaused, RunFinished, RunFailed)


def check_notify(host: Host) -> None:
    """Raise `ConfigError` if messages can't be signed or the command may not run."""
    notify = host.settings.notify
    check_notify_command(host)
    if notify.webhook_url and not host.environ.get(notify.webhook_secret_env):
        raise ConfigError(
            f"notify.webhook_url is set, and {notify.webhook_secret_env}, by which messages are signed, is not",
            hint=f"Set {notify.webhook_secret_env} to a secret that the receiver knows too",
        )


_ANNOUNCED = (RunPaused, RunFinished, RunFailed, ModelReplied)
"""Entries that may cause a message."""


class Subject(NamedTuple):
    """The entry that a message is about. The message is sent once the entry is in the journal."""

    run_id: str
    seq: int


def build_row(
    host: Host, subject: Subject, message: Mapping[str, JsonValue], *, channel: str, name: str = ""
) -> OutboxRow:
    """Build a message that is due now. Its key derives from `name`, or from the entry and the channel.

    If the entry is written again after a crash, the key is the same, so the message is stored once.
    """
    words = name or f"{subject.run_id}:{subject.seq}:{channel}"
    key = hashlib.sha256(words.encode()).hexdigest()[:32]
    now = host.clock.now()
    return OutboxRow(
        key=key,
        queue=host.settings.worker.queue,
        channel=channel,
        run_id=subject.run_id,
        seq=subject.seq,
        payload=json.dumps({"id": key, **message}, ensure_ascii=False),
        created_at=now,
        due_at=now,
    )


class Announcer:
    """Writes messages about the entries that are about to be written."""

    def __init__(self, host: Host, store: Store) -> None:
        self._host = host
        self._store = store

    async def __call__(self, log: RunLog, entries: Sequence[Entry]) -> None:
        if not any(isinstance(entry, _ANNOUNCED) for entry in entries):
            return
        asked = [entry.approval_id for entry in entries if isinstance(entry, ApprovalAsked)]
        rows = [
            row
            for number, entry in enumerate(entries, start=1)
            for row in self._build(log, entry, number=number, asked=asked)
        ]
        # On a full disk the entry itself is more important than its message.
        with suppress(StoreError):
            rows += build_cancel(log, entries, host=self._host)
            rows += await build_pushes(log, entries, host=self._host, store=self._store)
            if rows:
                await self._store.outbox.put(rows)

    def _build(self, log: RunLog, entry: Entry, *, number: int, asked: Sequence[str]) -> Iterable[OutboxRow]:
        word = get_event_name(log, entry)
        notify = self._host.settings.notify
        if not word or word not in notify.events or not notify.channels:
            return
        subject = Subject(log.state.run_id, log.state.seq + number)
        message: dict[str, JsonValue] = {**self._describe(log, entry, word), "approvals": [*asked]}
        # One warning per budget: all replies after it have the same key.
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


def get_event_name(log: RunLog, entry: Entry) -> str:
    """Return the name of the entry in `notify.events`; empty for most entries."""
    state = log.state
    match entry:
        case RunPaused():
            # Other pauses, such as a signal, are the user's own doing or end by themselves.
            word = "approval" if entry.pause == "approval" else "input"
            return word if entry.pause in USER_PAUSES else ""
        case RunFinished() | RunFailed():
            # Not for delegated work: the parent run reports its own end.
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


async def build_pushes(log: RunLog, entries: Sequence[Entry], *, host: Host, store: Store) -> list[OutboxRow]:
    """Build the push notifications about an entry that pauses or ends a task; none for most entries."""
    found = next((pair for pair in enumerate(entries, start=1) if isinstance(pair[1], _RESTS)), None)
    if found is None or log.state.started is None:
        return []
    number, entry = found
    is_end = not isinstance(entry, RunPaused)
    if is_end and log.state.run_id.startswith(CHILD):
        return []  # the parent run continues
    top = await _get_top(store, log.state.run_id, log.state.started.parent_run_id)
    receivers = await store.outbox.list_receivers(top)
    row = await store.find_run(top) if receivers else None
    if row is None:
        return []
    # The entries are not in the state yet, and the message reports the state after them.
    state = copy.deepcopy(log.state)
    for each in entries[:number]:
        apply(state, each)
    status = compute_status(row, state)
    if get_task_state(status) not in RESTING:
        return []
    subject = Subject(state.run_id, state.seq)
    return [_build_push(each, status, host=host, subject=subject) for each in receivers]


async def _get_top(store: Store, run_id: str, parent_id: str) -> str:
    """Return the run that the caller requested: the top ancestor of a child run."""
    # A fork has a parent too, but the parent's caller doesn't wait for it.
    while parent_id and run_id.startswith(CHILD):
        row = await store.find_run(parent_id)
        run_id, parent_id = parent_id, row.parent_run_id if row is not None else ""
    return run_id


def _build_push(receiver: Receiver, status: RunStatus, *, host: Host, subject: Subject) -> OutboxRow:
    target = Target.model_validate_json(receiver.data)
    clean = build_host_cleaner(host).text
    task = build_task(status, at=host.clock.now(), base_url=target.base_url, clean=clean)
    del task["history"]  # the caller wrote it
    if len(status.state.result) > _MAX_RESULT_CHARACTERS:
        del task["artifacts"]
    message: dict[str, JsonValue] = {
        "type": f"task.{get_task_state(status).lower()}",
        "task_id": status.row.run_id,
        "receiver": receiver.name,
        "body": {"task": task},
    }
    name = f"{subject.run_id}:{subject.seq}:{PUSH}:{receiver.name}"
    return build_row(host, subject, message, channel=PUSH, name=name)


def build_cancel(log: RunLog, entries: Sequence[Entry], *, host: Host) -> list[OutboxRow]:
    """Build one message if the entries cancel a run of a remote agent."""
    started = log.state.started
    number = next((n for n, entry in enumerate(entries, start=1) if _is_cancellation(entry)), 0)
    if not number or started is None or started.provider != REMOTE:
        return []
    subject = Subject(log.state.run_id, log.state.seq + number)
    return [build_row(host, subject, {"type": "remote.cancel", "agent": started.model}, channel=CANCEL)]


def _is_cancellation(entry: Entry) -> bool:
    return isinstance(entry, RunFailed) and entry.status == "canceled"
