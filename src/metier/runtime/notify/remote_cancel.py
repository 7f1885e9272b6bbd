"""Tell a remote agent that a run which it works for was canceled: through the outbox, so that a kill loses nothing."""

import json
from collections.abc import Sequence

import anyio

from metier.engine import entries as e
from metier.engine.journal import RunLog
from metier.errors import MetierError
from metier.providers.connection import Connection
from metier.providers.facts import FactBook
from metier.providers.offline.progress import find_task
from metier.providers.registry import REMOTE
from metier.providers.remote_options import read_agents
from metier.runtime.host import Host
from metier.runtime.notify.rows import Subject, build_row
from metier.store.outbox import OutboxRow

CANCEL = "a2a-cancel"
"""The channel of these messages."""


def build_cancel(log: RunLog, entries: Sequence[e.Entry], *, place: Host) -> list[OutboxRow]:
    """One message where the entries cancel a run that a remote agent answers."""
    started = log.state.started
    number = next((n for n, entry in enumerate(entries, start=1) if _is_cancellation(entry)), 0)
    if not number or started is None or started.provider != REMOTE:
        return []
    subject = Subject(log.state.run_id, log.state.seq + number)
    return [build_row(place, subject, {"type": "remote.cancel", "agent": started.model}, channel=CANCEL)]


async def cancel_remote(row: OutboxRow, place: Host, *, seconds: float) -> str:
    """Why it was not told; nothing where it was."""
    name = str(json.loads(row.payload)["agent"])
    options = read_agents(place.settings.model.providers.a2a.agents).get(name)
    if options is None:
        return f"the settings name no remote agent {name!r}"
    from metier.providers.a2a.provider import RemoteAgent, RemoteAgentProvider

    token = place.environ.get(options.token_env, "").strip() if options.token_env else ""
    agent = RemoteAgent(name=name, url=options.url, token=token, timeout_seconds=seconds)
    provider = RemoteAgentProvider(agent, Connection(facts=FactBook({})), run_id=row.run_id, find_task=find_task)
    try:
        with anyio.fail_after(seconds):
            await provider.cancel()
    except MetierError as error:
        return error.sentence[:300]
    finally:
        await provider.close()
    return ""


def _is_cancellation(entry: e.Entry) -> bool:
    return isinstance(entry, e.RunFailed) and entry.status == "canceled"
