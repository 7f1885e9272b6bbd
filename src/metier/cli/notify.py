"""`agent notify`: list notifications, send pending ones, and accept the command that sends them."""

import json
from typing import Annotated

import typer
from pydantic import JsonValue

from metier.cli.shared.command_options import AsJson, Config, build_group
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import in_runtime
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.decision import decide_interactively
from metier.runtime.notify.announcements import check_notify
from metier.runtime.notify.delivery import deliver_due, describe
from metier.runtime.notify.notify_command import accept_notify_command, check_notify_command, get_notify_code
from metier.runtime.runs import Runtime
from metier.store.outbox import OutboxRow

app = build_group("List and send notifications.")
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number, newest first.")]


@app.command("list")
def list_messages(
    *,
    only_open: Annotated[bool, typer.Option("--open", help="Only unsent notifications.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List notifications and their status."""
    host = open_host(config)
    queue = host.settings.worker.queue
    rows = in_runtime(host, lambda runtime: runtime.store.outbox.list(queue, only_open=only_open, limit=limit))
    if as_json:
        write_json([_as_json(row) for row in rows])
        return
    for row in rows:
        write_line(describe(row))
    if not rows:
        warn_line("No notifications")


@app.command(rich_help_panel="Advanced")
def send(*, as_json: AsJson = False, config: Config = None) -> int:
    """Send pending notifications.

    Exit code 1: some could not be sent; they are retried later.

    Workers, the server and active runs also do this.
    """
    host = open_host(config)
    check_notify(host)
    sent, rows = in_runtime(host, _send)
    if as_json:
        write_json({"sent": sent, "open": [_as_json(row) for row in rows]})
    else:
        write_line(f"{sent} sent, {len(rows)} pending")
        for row in rows:
            warn_line(describe(row))
    return 1 if rows else 0


@app.command()
def accept(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    config: Config = None,
) -> int:
    """Accept the files that `notify.command` runs.

    Runs cannot change accepted files.
    """
    host = open_host(config)
    code = get_notify_code(host)
    if code.is_open:
        check_notify_command(host)
    if not code.roots:
        warn_line("notify.command runs no workspace file: nothing to accept")
        return 0
    # Before the files are shown, so that a change while the user reads is not accepted.
    digest = code.digest()
    write_line(f"notify.command runs {' '.join(host.settings.notify.command)}")
    for path in code.roots:
        write_line(f"  {path}")
    if not yes and not decide_interactively("Accept these files as they are?", flag="--yes"):
        return 1
    accept_notify_command(host, code=digest, now=host.clock.now())
    warn_line("Accepted")
    return 0


async def _send(runtime: Runtime) -> tuple[int, list[OutboxRow]]:
    sent = await deliver_due(runtime.host, runtime.store)
    return sent, await runtime.store.outbox.list(runtime.host.settings.worker.queue, only_open=True)


def _as_json(row: OutboxRow) -> JsonValue:
    return {
        "id": row.key,
        "state": row.state,
        "channel": row.channel,
        "run_id": row.run_id,
        "attempts": row.attempts,
        "reason": row.reason,
        "due_at": row.due_at.isoformat(),
        "message": json.loads(row.payload),
    }
