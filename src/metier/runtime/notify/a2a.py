"""Messages to other agents over A2A: a run as a task, push notifications to callers, cancellations to remote agents."""

import copy
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import anyio
from pydantic import Field, JsonValue

from metier.engine.entries.entry import Entry
from metier.engine.entries.run import RunFailed, RunFinished, RunPaused
from metier.engine.journal import RunLog
from metier.engine.state.fold import apply
from metier.errors import MetierError, ToolFailed
from metier.providers.offline.progress import read_task
from metier.providers.options import read_agents
from metier.providers.registry import REMOTE
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host
from metier.runtime.notify.clients import using_clients
from metier.runtime.notify.outbox_messages import Subject, build_row
from metier.runtime.status import RunStatus, compute_status
from metier.store.base import Store
from metier.store.outbox import OutboxRow, Receiver
from metier.tools.web.url import Pinned, WebAccess, WebUrl, list_addresses, parse_url, pin_url
from metier.values import Value

RESULT = "result"
TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELED", "REJECTED"})
INTERRUPTED = frozenset({"INPUT_REQUIRED", "AUTH_REQUIRED"})
RESTING = TERMINAL | INTERRUPTED
"""States in which nothing happens until the caller or a user acts."""
PREFIX = "TASK_STATE_"
_STATES = {
    "pending": "SUBMITTED",
    "completed": "COMPLETED",
    "canceled": "CANCELED",
    "failed": "FAILED",
    "timeout": "FAILED",
    "escalated": "FAILED",
    "blocked": "FAILED",
}

PUSH = "a2a"
"""Channel of push notifications."""
MEDIA_TYPE = "application/a2a+json"
_MAX_RESULT_CHARACTERS = 100_000
"""Limit of a result in a message; longer ones are left out, and the caller gets the task."""
_RESTS = (RunPaused, RunFinished, RunFailed)
_HEADER_VALUE = r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"
CANCEL = "a2a-cancel"
"""Channel of cancellations."""


def get_task_state(status: RunStatus) -> str:
    """Return the protocol's word, without its prefix. The caller is a program, so only questions are its to answer."""
    if status.status in _STATES:
        return _STATES[status.status]
    if status.pause == "input":
        return "INPUT_REQUIRED"
    return "AUTH_REQUIRED" if status.waits_for_user else "WORKING"


def build_task(status: RunStatus, *, at: datetime, base_url: str, clean: Callable[[str], str]) -> dict[str, JsonValue]:
    """Build the task; `base_url` is the server's address for the caller and for a deciding user."""
    row, state = status.row, get_task_state(status)
    context = read_context(row.context_id)
    owner: dict[str, JsonValue] = {"taskId": row.run_id, "contextId": context}
    described: dict[str, JsonValue] = {
        "state": f"{PREFIX}{state}",
        "timestamp": at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    if parts := _describe(status, base_url, clean=clean):
        message_id = f"{row.run_id}-{status.waiting.seq}"
        described["message"] = {"messageId": message_id, **owner, "role": "ROLE_AGENT", "parts": parts}
    asked: dict[str, JsonValue] = {"messageId": f"{row.run_id}-0", **owner, "role": "ROLE_USER"}
    task: dict[str, JsonValue] = {
        "id": row.run_id,
        "contextId": context,
        "status": described,
        "history": [{**asked, "parts": [{"text": row.task}]}],
    }
    if status.status == "completed":
        result: dict[str, JsonValue] = {"text": clean(status.state.result)}
        task["artifacts"] = [{"artifactId": RESULT, "name": RESULT, "parts": [result]}]
    return task


def read_context(name: str) -> str:
    """Return the caller's name of its conversation, without the prefix for the caller."""
    return name.partition("/")[2]


def _describe(status: RunStatus, base_url: str, *, clean: Callable[[str], str]) -> list[JsonValue]:
    """Return the question with its fields, the place where a user decides, or the failure."""
    question = status.question
    match get_task_state(status):
        case "INPUT_REQUIRED" if question is not None:
            parts: list[JsonValue] = [{"text": clean(question.text)}]
            if question.raw_fields is not None:
                parts.append({"data": {"fields": question.raw_fields}})
            return parts
        case "AUTH_REQUIRED":
            return [{"text": clean(_name_decider(status, base_url))}]
        case "FAILED":
            return [{"text": clean(status.failure_text)}]
        case _:
            return []


def _name_decider(status: RunStatus, base_url: str) -> str:
    """Name the place of the decision; the exact call stays there, where the approver sees it."""
    where = f"{base_url}/" if base_url else "the inbox of the server"
    asking = next(iter(status.approval_ids), "")
    command = f"agent approvals approve {asking}" if asking else f"agent resume {status.waiting.run_id}"
    return f"A person must decide before this goes on, at {where} or with `{command}`. A2A clients can't decide it."


# The credentials of a receiver stay in its row: they are neither in a message nor in a journal.
class Target(Value):
    """A receiver's address, and the token by which it knows the sender."""

    url: str = Field(min_length=1, max_length=2000)
    token: str = Field(default="", max_length=4000, pattern=rf"{_HEADER_VALUE}|^$")
    scheme: str = Field(default="", max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_|~-]*$")
    credentials: str = Field(default="", max_length=8000, pattern=rf"{_HEADER_VALUE}|^$")
    base_url: str = ""
    """Address at which the caller reaches the server."""


async def check_target(target: Target, host: Host) -> None:
    """Raise `ToolFailed` for an address that messages may not go to."""
    await _list_addresses(parse_url(target.url), host)


async def build_pushes(log: RunLog, entries: Sequence[Entry], *, host: Host, store: Store) -> list[OutboxRow]:
    """Build messages about an entry that pauses or ends a task; none for most entries."""
    found = next((pair for pair in enumerate(entries, start=1) if isinstance(pair[1], _RESTS)), None)
    if found is None or log.state.started is None:
        return []
    number, entry = found
    is_end = not isinstance(entry, RunPaused)
    if is_end and log.state.started.parent_run_id:
        return []  # the run above continues
    top = await _get_top(store, log.state.run_id, log.state.started.parent_run_id)
    receivers = await store.outbox.list_receivers(top)
    row = await store.find_run(top) if receivers else None
    if row is None:
        return []
    # The entries are about to be written: the message reports the state after them.
    state = copy.deepcopy(log.state)
    for each in entries[:number]:
        apply(state, each)
    status = compute_status(row, state)
    if get_task_state(status) not in RESTING:
        return []
    subject = Subject(state.run_id, state.seq)
    return [_build(each, status, host=host, subject=subject) for each in receivers]


async def find_target(row: OutboxRow, store: Store) -> Target | None:
    """Return the receiver; None if it or its task was removed since."""
    message = json.loads(row.payload)
    for receiver in await store.outbox.list_receivers(str(message["task_id"])):
        if receiver.name == message["receiver"]:
            return Target.model_validate_json(receiver.data)
    return None


async def post_push(row: OutboxRow, host: Host, store: Store, *, seconds: float) -> str:
    """Post the notification and return the failure, or an empty string."""
    target = await find_target(row, store)
    if target is None:
        return "its receiver was removed"
    body = json.dumps(json.loads(row.payload)["body"], ensure_ascii=False).encode()
    with anyio.fail_after(seconds):
        url = parse_url(target.url)
        problem = "no address"
        import httpx2

        for address in await _list_addresses(url, host):
            try:
                return await _post(pin_url(url, address), target, body, key=row.key, host=host)
            except httpx2.ConnectError as error:
                problem = f"{type(error).__name__}: {error}"[:200]
        return problem


async def _post(pinned: Pinned, target: Target, body: bytes, *, key: str, host: Host) -> str:
    headers = {**pinned.headers, "content-type": MEDIA_TYPE, "user-agent": "metier", "webhook-id": key}
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


async def _list_addresses(url: WebUrl, host: Host) -> list[str]:
    """List public addresses over TLS, and those that this machine's settings name."""
    named = [text.rpartition(":") for text in host.settings.server.push_hosts]
    open_hosts = {(name.strip("[]").lower(), int(port)) for name, _, port in named}
    if url.scheme != "https" and (url.host, url.port) not in open_hosts:
        raise ToolFailed(
            f"A receiver must have an https address, and {url.text!r} has none",
            code="permission_denied",
            hint="The user of the server can name its host and port in `server.push_hosts`",
        )
    return await list_addresses(url, WebAccess(open_hosts=open_hosts))


async def _get_top(store: Store, run_id: str, parent_id: str) -> str:
    """Return the requested run; its descendants wait on its behalf."""
    while parent_id:
        row = await store.find_run(parent_id)
        run_id, parent_id = parent_id, row.parent_run_id if row is not None else ""
    return run_id


def _build(receiver: Receiver, status: RunStatus, *, host: Host, subject: Subject) -> OutboxRow:
    target = Target.model_validate_json(receiver.data)
    clean = build_host_cleaner(host).text
    task = build_task(status, at=host.clock.now(), base_url=target.base_url, clean=clean)
    del task["history"]  # the caller said it
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


async def cancel_remote(row: OutboxRow, host: Host, *, seconds: float) -> str:
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


def _is_cancellation(entry: Entry) -> bool:
    return isinstance(entry, RunFailed) and entry.status == "canceled"
