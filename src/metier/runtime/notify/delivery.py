"""Delivery of outbox messages: signed, with a timeout, retried after a failure.

At least once: a kill between the answer of a receiver and the note of it sends the same message again, under the same
`webhook-id`.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import anyio
from anyio.to_thread import run_sync

from metier.errors import ConfigError, StoreError, ToolFailed
from metier.runtime.host import Host
from metier.runtime.notify.a2a import PUSH, cancel_remote, find_target, post_push
from metier.runtime.notify.clients import using_clients
from metier.runtime.notify.command import get_notify_program, locate_notify_folder
from metier.runtime.notify.links import add_links
from metier.store.base import Store
from metier.store.outbox import OutboxRow
from metier.tools.process.run import ProcessLimits, build_own_command, run_process

ATTEMPT_SECONDS = 5.0
CLAIM_SECONDS = 60.0
"""Time for which other processes leave a message alone: longer than an attempt can take."""
FIRST_DELAY_SECONDS = 2.0
MAX_DELAY_SECONDS = 3600.0
MAX_ATTEMPTS = 30
"""Number of attempts, the last one more than a day after the first."""
POLL_SECONDS = 2.0
LAST_SECONDS = 5.0
"""Time for which an exiting command continues to try."""
AT_ONCE, MAX_ROUNDS = 16, 8
"""Number of concurrent messages, and number of such batches before other senders get their turn."""
UNWRITTEN_SECONDS = 3600.0
"""Age after which a message without its entry in the journal is dropped: the entry was never written."""
_GONE = 410
_OWN = frozenset({"webhook", "command"})
"""Channels of the user, who may decide."""


async def deliver_due(host: Host, store: Store) -> int:
    """Try due messages once each and return their number. A slow receiver delays no other."""
    queue, sent = host.settings.worker.queue, 0
    # Looking takes no lock, claiming does.
    if not await store.outbox.list(queue, only_open=True, limit=1):
        return 0

    async def deliver(row: OutboxRow) -> None:
        nonlocal sent
        settled = await _try(row, host, store)
        sent += settled.state == "sent"
        await store.outbox.settle(settled)

    for _ in range(MAX_ROUNDS):
        rows = await _claim(host, store)
        async with anyio.create_task_group() as group:
            for row in rows:
                group.start_soon(deliver, row)
        if len(rows) < AT_ONCE:
            break
    return sent


async def _claim(host: Host, store: Store) -> list[OutboxRow]:
    claimed: list[OutboxRow] = []
    while len(claimed) < AT_ONCE:
        now = host.clock.now()
        until = now + timedelta(seconds=CLAIM_SECONDS)
        row = await store.outbox.claim(host.settings.worker.queue, now=now, until=until)
        if row is None:
            break
        claimed.append(row)
    return claimed


@asynccontextmanager
async def delivering(host: Host, store: Store, *, is_pooled: bool = False) -> AsyncGenerator[None]:
    """Deliver messages during this block and for a moment after it. The rest stays for the next process.

    Where a pool delivers beside its runs, those of other programs are left to it.
    """
    if not host.settings.notify.channels:
        yield
        if not is_pooled:
            await deliver_last(host, store)
        return
    async with anyio.create_task_group() as group:
        group.start_soon(_deliver_again_and_again, host, store)
        try:
            yield
        finally:
            group.cancel_scope.cancel()
    await deliver_last(host, store)


async def deliver_last(host: Host, store: Store) -> None:
    """Send the due messages, within the time that an exiting command allows."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_SECONDS), suppress(StoreError):
        await deliver_due(host, store)


async def _deliver_again_and_again(host: Host, store: Store) -> None:
    while True:
        await anyio.sleep(POLL_SECONDS)
        # An attempt that was started is ended: half of it would count and be told twice.
        with anyio.CancelScope(shield=True), suppress(StoreError):
            await deliver_due(host, store)


async def _try(row: OutboxRow, host: Host, store: Store) -> OutboxRow:
    now = host.clock.now()
    if row.seq and not await store.read_journal(row.run_id, after=row.seq - 1, limit=1):
        if now - row.created_at > timedelta(seconds=UNWRITTEN_SECONDS):
            return replace(row, state="dropped", reason="what it tells of was never written")
        return replace(row, due_at=now + timedelta(seconds=FIRST_DELAY_SECONDS), reason="not written yet")
    import httpx2

    try:
        if row.channel == PUSH and await find_target(row, store) is None:
            return replace(row, state="dropped", reason="its receiver was removed")
        # The row itself stays without links: what is kept holds none.
        linked = replace(row, payload=await run_sync(add_links, row.payload, host)) if row.channel in _OWN else row
        reason = await _send(linked, host, store)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ToolFailed, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"[:300]
    if not reason:
        return replace(row, state="sent", reason="")
    if row.attempts >= MAX_ATTEMPTS or reason.startswith(str(_GONE)):
        return replace(row, state="failed", reason=reason)
    delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (row.attempts - 1))
    return replace(row, due_at=host.clock.now() + timedelta(seconds=delay), reason=reason)


async def _send(row: OutboxRow, host: Host, store: Store) -> str:
    """Send the message and return the failure, or an empty string."""
    match row.channel:
        case "webhook":
            return await _post(row, host)
        case "command":
            return await _call(row, host)
        case "a2a-cancel":
            return await cancel_remote(row, host, seconds=ATTEMPT_SECONDS)
        case _:
            return await post_push(row, host, store, seconds=ATTEMPT_SECONDS)


async def _post(row: OutboxRow, host: Host) -> str:
    notify = host.settings.notify
    secret = host.environ.get(notify.webhook_secret_env, "")
    if not notify.webhook_url or not secret:
        return "no address, or no secret to sign with"
    body = row.payload.encode()
    stamp = str(int(host.clock.now().timestamp()))
    headers = {
        "content-type": "application/json",
        "user-agent": "metier",
        "webhook-id": row.key,
        "webhook-timestamp": stamp,
        "webhook-signature": sign(secret, row.key, stamp, body=body),
    }
    with anyio.fail_after(ATTEMPT_SECONDS):
        async with (
            using_clients(host) as clients,
            clients.open_plain().stream("POST", notify.webhook_url, content=body, headers=headers) as response,
        ):
            # Its body is not read: a receiver that sends slowly would hold the command that ends.
            return "" if response.is_success else f"{response.status_code} {response.reason_phrase}"


def sign(secret: str, key: str, stamp: str, *, body: bytes) -> str:
    """Sign by the Standard Webhooks specification: a secret that starts with `whsec_` is base64."""
    own = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    digest = hmac.digest(own, f"{key}.{stamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


async def _call(row: OutboxRow, host: Host) -> str:
    if not host.settings.notify.command:
        return "no command"
    try:
        program = await run_sync(get_notify_program, host)
    except ConfigError as error:
        return error.sentence
    command = build_own_command(program, folder=locate_notify_folder(host))
    outcome = await run_process(command, ProcessLimits(timeout_seconds=ATTEMPT_SECONDS), stdin=row.payload.encode())
    if outcome.exit_code == 0:
        return ""
    return "it took too long" if outcome.timed_out else f"exit code {outcome.exit_code}"


def describe(row: OutboxRow) -> str:
    """Describe a message in one line."""
    kind = json.loads(row.payload).get("type", "")
    reason = f"  {row.reason}" if row.reason else ""
    return f"{row.key[:12]}  {row.state}  {row.channel}  {kind}  {row.run_id}  attempts {row.attempts}{reason}"
