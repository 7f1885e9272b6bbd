"""Tell receivers that callers of A2A named how their task stands: through the outbox, to an address that was checked.

What a receiver knows the sender by stays in the row of the receiver, and is neither in a message nor in a journal.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import anyio
from pydantic import Field, JsonValue

from metier.engine import entries as e
from metier.engine.journal import RunLog
from metier.errors import ToolFailed
from metier.messages import Value
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.host import Host
from metier.runtime.notify.clients import using_clients
from metier.runtime.notify.rows import Subject, build_row
from metier.runtime.notify.task_json import RESTING, Standing, build_task, find_open_approval
from metier.store.base import RunRow, Store
from metier.store.outbox import OutboxRow, Receiver
from metier.tools.web.resolving import Pinned, WebAccess, find_addresses, pin_url
from metier.tools.web.url import WebUrl, parse_url

PUSH = "a2a"
"""The channel of these messages."""
MEDIA_TYPE = "application/a2a+json"
_MOST_RESULT_CHARACTERS = 100_000
"""A longer result is left out: the caller gets the task."""
_RESTS = (e.RunPaused, e.RunFinished, e.RunFailed)
_HEADER_VALUE = r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"


class Target(Value):
    """Where a receiver is and what it knows the sender by."""

    url: str = Field(min_length=1, max_length=2000)
    token: str = Field(default="", max_length=4000, pattern=rf"{_HEADER_VALUE}|^$")
    scheme: str = Field(default="", max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_|~-]*$")
    credentials: str = Field(default="", max_length=8000, pattern=rf"{_HEADER_VALUE}|^$")
    base_url: str = ""
    """Where the caller reaches the server."""


async def check_target(target: Target, place: Host) -> None:
    """Raises `ToolFailed` for an address that messages may not go to."""
    await _find_addresses(parse_url(target.url), place)


async def build_pushes(log: RunLog, entries: Sequence[e.Entry], *, place: Host, store: Store) -> list[OutboxRow]:
    """Messages about an entry with which a task comes to rest; none for most entries and most runs."""
    found = next((pair for pair in enumerate(entries, start=1) if isinstance(pair[1], _RESTS)), None)
    if found is None or log.state.started is None:
        return []
    number, entry = found
    is_end = not isinstance(entry, e.RunPaused)
    if is_end and log.state.started.parent_run_id:
        return []  # the run above goes on
    top = await _find_top(store, log.state.run_id, log.state.started.parent_run_id)
    receivers = await store.outbox.list_receivers(top)
    row = await store.find_run(top) if receivers else None
    if row is None:
        return []
    standing = _find_standing(log, entries, entry=entry, place=place, number=number)
    if standing.state not in RESTING:
        return []
    subject = Subject(log.state.run_id, log.state.seq + number)
    return [_build(each, row, standing, place=place, subject=subject) for each in receivers]


async def find_target(row: OutboxRow, store: Store) -> Target | None:
    """None where the receiver, or its task, was removed since."""
    message = json.loads(row.payload)
    for receiver in await store.outbox.list_receivers(str(message["task_id"])):
        if receiver.name == message["receiver"]:
            return Target.model_validate_json(receiver.data)
    return None


async def post_push(row: OutboxRow, place: Host, store: Store, *, seconds: float) -> str:
    """Why it was not taken; nothing where it was."""
    target = await find_target(row, store)
    if target is None:
        return "its receiver was removed"
    body = json.dumps(json.loads(row.payload)["body"], ensure_ascii=False).encode()
    with anyio.fail_after(seconds):
        url = parse_url(target.url)
        problem = "no address"
        import httpx2

        for address in await _find_addresses(url, place):
            try:
                return await _post(pin_url(url, address), target, body, key=row.key, place=place)
            except httpx2.ConnectError as error:
                problem = f"{type(error).__name__}: {error}"[:200]
        return problem


async def _post(pinned: Pinned, target: Target, body: bytes, *, key: str, place: Host) -> str:
    headers = {**pinned.headers, "content-type": MEDIA_TYPE, "user-agent": "metier", "webhook-id": key}
    if target.token:
        headers["x-a2a-notification-token"] = target.token
    if target.scheme and target.credentials:
        headers["authorization"] = f"{target.scheme} {target.credentials}"
    async with (
        using_clients(place) as clients,
        clients.open_pinned().stream(
            "POST", pinned.url, content=body, headers=headers, extensions=pinned.extensions
        ) as response,
    ):
        return "" if response.is_success else f"{response.status_code} {response.reason_phrase}"


async def _find_addresses(url: WebUrl, place: Host) -> list[str]:
    """Public addresses over TLS, and those that the settings of this machine name."""
    named = [text.rpartition(":") for text in place.settings.server.push_hosts]
    open_hosts = {(host.strip("[]").lower(), int(port)) for host, _, port in named}
    if url.scheme != "https" and (url.host, url.port) not in open_hosts:
        raise ToolFailed(
            f"A receiver must have an https address, and {url.text!r} has none",
            code="permission_denied",
            hint="The user of the server can name its host and port in `server.push_hosts`",
        )
    return await find_addresses(url, WebAccess(open_hosts=open_hosts))


async def _find_top(store: Store, run_id: str, parent_id: str) -> str:
    """The run that was asked for; a run below it waits on its behalf."""
    while parent_id:
        row = await store.find_run(parent_id)
        run_id, parent_id = parent_id, row.parent_run_id if row is not None else ""
    return run_id


def _find_standing(log: RunLog, entries: Sequence[e.Entry], *, entry: e.Entry, place: Host, number: int) -> Standing:
    """How the task stands when the entries are written."""
    state, clock = log.state, place.clock
    standing = Standing(status="paused", at=clock.now(), waiting_run_id=state.run_id, waiting_seq=state.seq + number)
    match entry:
        case e.RunPaused():
            asked = [each for each in entries if isinstance(each, e.InputAsked)]
            approvals = [each.approval_id for each in entries if isinstance(each, e.ApprovalAsked)]
            return replace(
                standing,
                pause=entry.pause,
                question=asked[-1] if asked else state.question,
                approval_id=approvals[0] if approvals else find_open_approval(state),
            )
        case e.RunFinished():
            return replace(standing, status="completed", result=entry.result)
        case e.RunFailed():
            return replace(standing, status=entry.status, failure=f"{entry.message} ({entry.reason})")
        case _:
            return standing


def _build(receiver: Receiver, row: RunRow, standing: Standing, *, place: Host, subject: Subject) -> OutboxRow:
    target = Target.model_validate_json(receiver.data)
    task = build_task(row, standing, base_url=target.base_url, clean=build_place_cleaner(place).text)
    del task["history"]  # the caller said it
    if len(standing.result) > _MOST_RESULT_CHARACTERS:
        del task["artifacts"]
    message: dict[str, JsonValue] = {
        "type": f"task.{standing.state.lower()}",
        "task_id": row.run_id,
        "receiver": receiver.name,
        "body": {"task": task},
    }
    name = f"{subject.run_id}:{subject.seq}:{PUSH}:{receiver.name}"
    return build_row(place, subject, message, channel=PUSH, name=name)
