"""Delivery of outbox messages: signed, with a timeout, retried after a failure.

Messages are delivered at least once. If the process dies after a receiver replied and before that is recorded, the same
message is sent again under the same `webhook-id`.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync

from metier.errors import ConfigError, MetierError, StoreError, ToolFailed
from metier.providers.offline.progress import read_task
from metier.providers.options import read_agents
from metier.runtime.host import Host
from metier.runtime.notify.a2a import Target, find_target, list_target_addresses
from metier.runtime.notify.announcements import CANCEL, PUSH
from metier.runtime.notify.links import add_links
from metier.runtime.notify.notify_command import get_notify_program, locate_notify_folder
from metier.store.base import Store
from metier.store.outbox import OutboxRow
from metier.tools.process.run import ProcessLimits, build_own_command, run_process
from metier.tools.web.url import Pinned, parse_url, pin_url

if TYPE_CHECKING:
    import httpx2


# At most `LAST_SECONDS`, or the exit of a command would cut off a slow attempt.
ATTEMPT_SECONDS = 5.0
CLAIM_SECONDS = 60.0
"""Time for which a claimed message is hidden from other processes: longer than an attempt can take."""
FIRST_DELAY_SECONDS = 2.0
MAX_DELAY_SECONDS = 3600.0
MAX_ATTEMPTS = 30
"""Number of attempts, the last one more than a day after the first."""
POLL_SECONDS = 2.0
LAST_SECONDS = 5.0
"""Time that a command may spend on delivery before it exits."""
AT_ONCE, MAX_ROUNDS = 16, 8
"""Number of concurrent messages, and number of such batches before other senders get their turn."""
UNWRITTEN_SECONDS = 3600.0
"""Age after which a message is dropped if its journal entry was never written."""
_A2A_MEDIA_TYPE = "application/a2a+json"
_GONE = 410
"""Status by which a receiver unsubscribes, according to the Standard Webhooks specification."""
_OWN = frozenset({"webhook", "command"})
"""Channels that reach the user, who may decide approvals."""


class NoticeClients:
    """HTTP clients for notifications, created on first use. They belong to the event loop that first used them."""

    def __init__(self) -> None:
        self._plain: httpx2.AsyncClient | None = None
        self._pinned: httpx2.AsyncClient | None = None

    def open_plain(self) -> "httpx2.AsyncClient":
        """Open a client for the address of the user's settings, with the environment's proxies."""
        # Imported with the first message: it takes 60 ms, and most runs send none.
        import httpx2

        from metier.tls import load_context

        if self._plain is None:
            self._plain = httpx2.AsyncClient(verify=load_context(), follow_redirects=False, timeout=None)
        return self._plain

    def open_pinned(self) -> "httpx2.AsyncClient":
        """Open a client for checked addresses of callers.

        It ignores proxies, which would resolve the name again and could reach another address. It keeps no
        connections: the pool knows them by address alone, so one host's certificate would be accepted for another.
        """
        import httpx2

        from metier.tls import load_context

        if self._pinned is None:
            limits = httpx2.Limits(max_keepalive_connections=0)
            # No redirects: they would lead to an unchecked address. No timeout here: it would apply to each
            # read, and `fail_after` limits the whole attempt.
            self._pinned = httpx2.AsyncClient(
                verify=load_context(trust_env=False),
                trust_env=False,
                follow_redirects=False,
                timeout=None,
                limits=limits,
            )
        return self._pinned

    async def aclose(self) -> None:
        for client in (self._plain, self._pinned):
            if client is not None:
                await client.aclose()
        self._plain = self._pinned = None


@asynccontextmanager
async def using_clients(host: Host) -> AsyncGenerator[NoticeClients]:
    """Yield the clients of the host, or new ones for this block. Sharing them saves a TLS context per message."""
    if host.clients is not None:
        yield host.clients.get(NoticeClients, NoticeClients)
        return
    clients = NoticeClients()
    try:
        yield clients
    finally:
        await clients.aclose()


async def deliver_due(host: Host, store: Store) -> int:
    """Try each due message once and return how many were sent. A slow receiver doesn't delay others."""
    queue, sent = host.settings.worker.queue, 0
    # Check first: claiming takes a write lock, listing does not.
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
    """Deliver messages during this block and for a moment after it. The next process delivers the rest.

    If the run is driven by a pool (`is_pooled`), the pool delivers messages to other programs.
    """
    # There may still be push notifications and cancellations. They are delivered at the end.
    if not host.settings.notify.channels:
        yield
        if not is_pooled:
            await deliver_last(host, store)
        return
    async with anyio.create_task_group() as group:
        group.start_soon(_keep_delivering, host, store)
        try:
            yield
        finally:
            group.cancel_scope.cancel()
    await deliver_last(host, store)


async def deliver_last(host: Host, store: Store) -> None:
    """Deliver the due messages before a command exits, for at most `LAST_SECONDS`."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_SECONDS), suppress(StoreError):
        await deliver_due(host, store)


async def _keep_delivering(host: Host, store: Store) -> None:
    while True:
        await anyio.sleep(POLL_SECONDS)
        # Shielded: a canceled attempt would count as one and send its message twice.
        with anyio.CancelScope(shield=True), suppress(StoreError):
            await deliver_due(host, store)


async def _try(row: OutboxRow, host: Host, store: Store) -> OutboxRow:
    now = host.clock.now()
    # Messages are written before the entry that they report. If that never followed, nothing has happened to report.
    if row.seq and not await store.read_journal(row.run_id, after=row.seq - 1, limit=1):
        if now - row.created_at > timedelta(seconds=UNWRITTEN_SECONDS):
            return replace(row, state="dropped", reason="what it tells of was never written")
        return replace(row, due_at=now + timedelta(seconds=FIRST_DELAY_SECONDS), reason="not written yet")
    import httpx2

    try:
        if row.channel == PUSH and await find_target(row, store) is None:
            return replace(row, state="dropped", reason="its receiver was removed")
        # Links are added to a copy, because the stored row must not contain any.
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
            return await _post_webhook(row, host)
        case "command":
            return await _run_command(row, host)
        case channel if channel == CANCEL:
            return await _cancel_remote(row, host, seconds=ATTEMPT_SECONDS)
        case _:
            return await _post_push(row, host, store, seconds=ATTEMPT_SECONDS)


async def _post_webhook(row: OutboxRow, host: Host) -> str:
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
            # The body is not read: a receiver that sends slowly would delay the exit of the command.
            return "" if response.is_success else f"{response.status_code} {response.reason_phrase}"


def sign(secret: str, key: str, stamp: str, *, body: bytes) -> str:
    """Sign as the Standard Webhooks specification says. A secret that starts with `whsec_` is base64."""
    own = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    digest = hmac.digest(own, f"{key}.{stamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


async def _run_command(row: OutboxRow, host: Host) -> str:
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


async def _post_push(row: OutboxRow, host: Host, store: Store, *, seconds: float) -> str:
    """Post the notification and return the failure, or an empty string."""
    target = await find_target(row, store)
    if target is None:
        return "its receiver was removed"
    body = json.dumps(json.loads(row.payload)["body"], ensure_ascii=False).encode()
    with anyio.fail_after(seconds):
        url = parse_url(target.url)
        problem = "no address"
        import httpx2

        for address in await list_target_addresses(url, host):
            try:
                return await _post_pinned(pin_url(url, address), target, body, key=row.key, host=host)
            # Only without a connection: after other errors the receiver may have the message.
            except httpx2.ConnectError as error:
                problem = f"{type(error).__name__}: {error}"[:200]
        return problem


async def _post_pinned(pinned: Pinned, target: Target, body: bytes, *, key: str, host: Host) -> str:
    headers = {**pinned.headers, "content-type": _A2A_MEDIA_TYPE, "user-agent": "metier", "webhook-id": key}
    if target.token:
        headers["x-a2a-notification-token"] = target.token
    if target.scheme and target.credentials:
        headers["authorization"] = f"{target.scheme} {target.credentials}"
    async with (
        using_clients(host) as clients,
        clients.open_pinned().stream(
            "POST", pinned.url, content=body, headers=headers, extensions=pinned.extensions
        ) as response,
    ):
        return "" if response.is_success else f"{response.status_code} {response.reason_phrase}"


async def _cancel_remote(row: OutboxRow, host: Host, *, seconds: float) -> str:
    """Cancel the remote run and return the failure, or an empty string."""
    name = str(json.loads(row.payload)["agent"])
    options = read_agents(host.settings.model.providers.a2a.agents).get(name)
    if options is None:
        return f"the settings name no remote agent {name!r}"
    from metier.providers.a2a import RemoteAgent, RemoteAgentProvider

    token = host.environ.get(options.token_env, "").strip() if options.token_env else ""
    agent = RemoteAgent(name=name, url=options.url, token=token, timeout_seconds=seconds)
    provider = RemoteAgentProvider(agent, run_id=row.run_id, read_task=read_task)
    try:
        with anyio.fail_after(seconds):
            await provider.cancel()
    except MetierError as error:
        return error.sentence[:300]
    finally:
        await provider.close()
    return ""


def describe(row: OutboxRow) -> str:
    """Describe a message in one line."""
    kind = json.loads(row.payload).get("type", "")
    reason = f"  {row.reason}" if row.reason else ""
    return f"{row.key[:12]}  {row.state}  {row.channel}  {kind}  {row.run_id}  attempts {row.attempts}{reason}"
