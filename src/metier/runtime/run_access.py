"""Access to runs for commands: the protocol, and its implementation for a workspace on this machine.

`cli.remote.client` implements the same protocol with the HTTP API of a server.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import closing, suppress
from typing import Literal, Protocol

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import TaskState
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.errors import MetierError, UsageError
from metier.ids import get_user
from metier.runtime.answers import Answer, check_answer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.child_runs import request_task
from metier.runtime.history.archive import render_archive
from metier.runtime.history.follower import Follower, follow
from metier.runtime.history.run_views import read_run_view
from metier.runtime.history.transfer import export_run
from metier.runtime.host import Host
from metier.runtime.notify.delivery import deliver_last
from metier.runtime.queue.detached import submit, wake
from metier.runtime.queue.wakeups import find_broker
from metier.runtime.records.index_rows import row_as_json
from metier.runtime.records.record import build_record
from metier.runtime.records.signatures import check_run_token
from metier.runtime.requests import RunRequest, join_trace
from metier.runtime.run_outcome import RunOutcome, build_outcome, last_lines, totals_as_json, work_as_json
from metier.runtime.runs import Runtime
from metier.runtime.status import get_status
from metier.store.base import ENDED, RUNNABLE, ApprovalAttempt, RunRow
from metier.store.failures import LeaseHeld
from metier.telemetry.sinks import Sink
from metier.views.run_view import RunView
from metier.views.user_question import QuestionField

CANCEL_SECONDS = 20.0
"""Time that `cancel` waits for the driver, which needs its grace period and time to record the end."""


class ApprovalInbox(Protocol):
    """The approvals of a workspace or of a server."""

    def pages(self, *, run_id: str = "", status: str = "") -> AsyncGenerator[list[ApprovalQuestion]]: ...

    async def get(self, name: str) -> ApprovalQuestion: ...

    async def attempts(self, question: ApprovalQuestion) -> list[ApprovalAttempt]: ...

    async def decide(self, question: ApprovalQuestion, reply: Reply) -> ApprovalQuestion: ...


class RunList(Protocol):
    """The part that `agent runs list` needs, without the modules that drive runs."""

    def list_pages(self, *, status: str, limit: int) -> AsyncGenerator[list[RunRow]]:
        """List runs, newest first. `status` is one of `run_search.STATUSES`; empty lists all."""
        ...


class TaskRequest(Struct, frozen=True, kw_only=True):
    """A request for a run of a task definition."""

    task_id: str
    inputs: Mapping[str, JsonValue]
    agent: str = ""
    model: str = ""
    mode: Literal["live", "dry_run"] = "live"
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings for this run alone, by dotted key."""

    def build(self, host: Host) -> RunRequest:
        """Build the request for a workspace, which was opened with the settings. Raises `UsageError`, `ConfigError`."""
        request = request_task(host, self.task_id, self.inputs, agent=self.agent, model=self.model)
        return replace(request, mode=self.mode)


class ContinuedRun(Struct, frozen=True, kw_only=True):
    """The run that a user started, after a decision about it or a descendant."""

    run_id: str
    in_background: bool
    """True if a worker or a server continues it."""


class Runs(Protocol):
    """The runs of a workspace or of a server."""

    @property
    def approvals(self) -> ApprovalInbox: ...

    async def find(self, name: str) -> RunRow:
        """Find a run by its ID, a unique prefix of it, or `latest`. Raises `RunUnknown`."""
        ...

    async def get_outcome(self, run_id: str) -> RunOutcome: ...

    async def get_view(self, run_id: str) -> RunView:
        """Return the view of the run for display, with all of its children."""
        ...

    async def get_record(self, run_id: str) -> dict[str, JsonValue]:
        """Return the whole record of the run, as `agent runs show --json` prints it."""
        ...

    async def follow(self, run_id: str, sink: Sink) -> None:
        """Write every event to the sink until the run ends or waits for the user."""
        ...

    async def submit(self, request: RunRequest, settings: Mapping[str, str]) -> str:
        """Start a run in the background and return its ID. Only a server uses `settings`: a workspace has its own."""
        ...

    async def submit_task(self, request: TaskRequest) -> str:
        """Start a run of a task definition in the background and return its ID."""
        ...

    async def get_question_fields(self, run_id: str) -> tuple[QuestionField, ...]:
        """Return the fields of the run's question; empty if it has none."""
        ...

    async def answer(self, run_id: str, answer: Answer, *, token: str = "") -> None:
        """Record an answer, so that a background run continues. `token` is the `resume_token` that must still match."""
        ...

    async def cancel(self, run_id: str) -> TaskState:
        """Cancel a run and return its status. Raises `UsageError` if it has ended."""
        ...

    async def continue_decided(self, run_id: str) -> ContinuedRun:
        """Continue the run after a decision, if it runs in the background."""
        ...

    async def export(self, run_id: str, *, exact: bool = False) -> bytes:
        """Return the file for `agent runs import`. With `exact`, secrets are not redacted."""
        ...


type Notify = Callable[[RunRow], None]
"""Tells workers that a run can continue. May block."""


class LocalRuns(Struct, frozen=True, kw_only=True):
    """The runs of a workspace on this machine."""

    runtime: Runtime
    notify: Notify

    @property
    def approvals(self) -> ApprovalInbox:
        return self.runtime.approvals

    async def find(self, name: str) -> RunRow:
        return await self.runtime.find(name)

    async def get_outcome(self, run_id: str) -> RunOutcome:
        status = await self.runtime.get_status(run_id)
        return build_outcome(status, folder=self.runtime.folder(run_id), exit_code=status.exit_code())

    async def get_view(self, run_id: str) -> RunView:
        # All children, because the totals include their turns and tokens.
        return await read_run_view(self.runtime, run_id, max_children=None)

    async def get_record(self, run_id: str) -> dict[str, JsonValue]:
        row = await self.runtime.find(run_id)
        entries = await self.runtime.read_entries(run_id)
        state = fold(run_id, entries)
        status = await get_status(self.runtime.store, state, row=row)
        waits: JsonValue = None
        if status.pause:
            waits = {"kind": status.pause, "reason": status.pause_reason, "run_id": status.waits_for}
        return {
            **row_as_json(row),
            **(build_record(entries, state, now=row.updated_at) if state.started else {}),
            **totals_as_json(status.totals),
            **work_as_json(status),
            "cause": "\n".join(last_lines(status.cause)),
            "waits_for": waits,
            "folder": str(self.runtime.folder(run_id)),
        }

    async def follow(self, run_id: str, sink: Sink) -> None:
        with closing(Follower(self.runtime, run_id)) as follower:
            await follow(follower, sink)

    async def submit(self, request: RunRequest, settings: Mapping[str, str]) -> str:  # noqa: ARG002
        host = self.runtime.host
        # Report an invalid broker address first, or there would be a run that no worker claims.
        find_broker(host.settings.worker, host.environ)
        state = await submit(self.runtime, join_trace(request, host), queue=host.settings.worker.queue)
        await self._notify(state.run_id)
        return state.run_id

    async def submit_task(self, request: TaskRequest) -> str:
        return await self.submit(request.build(self.runtime.host), request.settings)

    async def get_question_fields(self, run_id: str) -> tuple[QuestionField, ...]:
        question = (await self.runtime.get_status(run_id)).question
        return question.fields if question is not None else ()

    async def answer(self, run_id: str, answer: Answer, *, token: str = "") -> None:
        status = await self.runtime.get_status(run_id)
        if token:
            check_run_token(self.runtime.host, token, status.state, waiting=status.waiting)
        # A run with a driver may have been answered already. That is a conflict, not an invalid answer.
        if not status.row.driver:
            check_answer(status, answer)
        if not status.row.queue:
            raise UsageError(
                f"Run {run_id!r} was not started with --detach", hint=f"Run `agent resume {run_id}` without --detach"
            )
        await wake(self.runtime, run_id, answer)
        await self._notify(run_id)

    async def cancel(self, run_id: str) -> TaskState:
        row = await self.runtime.find(run_id)
        if row.status in ENDED:
            raise UsageError(f"Run {run_id!r} is already {row.status}")
        # Repeat the request: the driver may release the run before it sees it, and then this process ends the run.
        with anyio.move_on_after(CANCEL_SECONDS):
            while True:
                state = await self.runtime.cancel(run_id, by=get_user())
                if state.phase in FINAL:
                    await deliver_last(self.runtime.host, self.runtime.store)
                    return state.status
                await anyio.sleep(0.2)
        row = await self.runtime.find(run_id)
        raise MetierError(
            f"Run {run_id!r} was asked to stop, and {row.driver or 'its driver'!r} has not answered yet",
            hint=f"Follow it with `agent runs watch {run_id}`",
        )

    async def continue_decided(self, run_id: str) -> ContinuedRun:
        owner = await self.runtime.get_started(run_id)
        if not owner.queue:
            return ContinuedRun(run_id=owner.run_id, in_background=False)
        # The worker that holds the lease is about to release it. If it misses the decision, the next sweep finds it.
        with suppress(LeaseHeld):
            await wake(self.runtime, owner.run_id)
        await self._notify(owner.run_id)
        return ContinuedRun(run_id=owner.run_id, in_background=True)

    async def export(self, run_id: str, *, exact: bool = False) -> bytes:
        return await run_sync(render_archive, await export_run(self.runtime, run_id, exact=exact))

    async def _notify(self, run_id: str) -> None:
        row = await self.runtime.find(run_id)
        if row.queue and row.status in (*RUNNABLE, "delegating"):
            await run_sync(self.notify, row)
