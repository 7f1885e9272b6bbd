"""Approval questions: list, inspect and decide them, and ask the user who is watching the run."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from msgspec import Struct, structs
from pydantic import JsonValue

from metier.approval.judge import find_running_file
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided
from metier.engine.execution.approval_requests import CallSnapshot, bind_approval, render_edited_call
from metier.engine.journal import read_entries_of
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import ApprovalClosed, UsageError
from metier.ids import Clock
from metier.store.base import ApprovalAttempt, ApprovalRow, Store
from metier.store.failures import ApprovalUnknown
from metier.tools.protected import runs_by_itself
from metier.tools.schemas import SchemaCheck

EXPIRY = "expiry"
"""Name recorded as the decider of an expired approval."""
RUN_ENDED = "The run has ended"
RUN_CANCELED = "The run was canceled"
_PAGE = 200


type Refuse = Callable[[str, tuple[str, dict[str, JsonValue]]], Awaitable[str]]
"""Returns why a call would be denied in a run; empty if it would be allowed."""


# A dataclass, because only its data counts in comparisons, not the functions that it carries.
@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalQuestion:
    """An approval with everything that the user needs to decide it."""

    row: ApprovalRow
    asked: ApprovalAsked | None
    """Entry of the journal; None if the process died between the approval and its entry."""
    tool: str
    arguments: dict[str, JsonValue]
    refuse: Refuse = field(repr=False, compare=False)
    look: "Look" = field(repr=False, compare=False)
    others: "tuple[ApprovalQuestion, ...]" = ()
    """Other pending calls of the same reply."""
    number: int = 1
    total: int = 1
    """Number of calls in the same reply that need an approval."""

    async def preview(self, arguments: dict[str, JsonValue]) -> str:
        """Return the change that the call would make with other arguments, if its tool has a preview."""
        return (await self.look(self.tool, arguments)).preview

    @property
    def leads_to_running_file(self) -> bool:
        """Return True if a link in the arguments leads to a file that programs run or read automatically."""
        return self.asked is not None and any(runs_by_itself(path) for path in self.asked.leads_to)

    @property
    def writes_running_file(self) -> bool:
        """Return True if the call writes a file that programs run or read automatically, directly or through a link."""
        return find_running_file(self.arguments) is not None or self.leads_to_running_file

    @property
    def hash(self) -> str:
        return bind_approval(self.row.payload)

    @property
    def edited_arguments(self) -> dict[str, JsonValue] | None:
        """Return the arguments as edited by the user, or None if they are unchanged."""
        if self.row.edited_payload is None:
            return None
        arguments = json.loads(self.row.edited_payload)["arguments"]
        return cast("dict[str, JsonValue]", arguments)  # written by `render_edited_call`

    async def get_wrong_arguments(self, arguments: JsonValue) -> str:
        """Return why edited arguments are rejected by the schema or the rules, or an empty string."""
        if not isinstance(arguments, dict):
            return "they are not a JSON object"
        schema = self.asked.input_schema if self.asked else {}
        if wrong := SchemaCheck(self.tool, schema).get_error(arguments):
            return wrong
        reason = await self.refuse(self.row.run_id, (self.tool, arguments))
        return f"the call would be denied. {reason}" if reason else ""


class Reply(Struct, frozen=True, kw_only=True):
    """A user's reply to a question."""

    decision: Literal["approved", "denied"]
    by: str
    reason: str = ""
    arguments: dict[str, JsonValue] | None = None
    """Edited arguments to approve instead."""
    remember: bool = False
    """Don't ask about similar calls again in this run."""
    is_for_all: bool = False
    """Apply the decision to the other pending calls of the reply."""


type Look = Callable[[str, dict[str, JsonValue]], Awaitable[CallSnapshot]]
"""Computes the effect that a call with these arguments would have now."""


class Approvals:
    def __init__(self, store: Store, clock: Clock, *, look: Look, refuse: Refuse) -> None:
        self._store = store
        self._clock = clock
        self._look = look
        self._refuse = refuse

    async def list_all(self, *, run_id: str = "", status: str = "") -> list[ApprovalQuestion]:
        """List approvals, oldest first. This closes expired ones."""
        return [question async for page in self.pages(run_id=run_id, status=status) for question in page]

    async def pages(self, *, run_id: str = "", status: str = "") -> AsyncGenerator[list[ApprovalQuestion]]:
        """Yield approvals in pages, so that a long list needs no more memory than a short one.

        A pending one without a journal entry is left out: its risk and preview are unknown until the run pauses, which
        is a moment later or, if its process died, after a resume.
        """
        await self._expire_open(run_id)
        after = 0
        while rows := await self._store.list_approvals(run_id=run_id, status=status, after=after, limit=_PAGE):
            # Each journal is read once for all of its approvals on the page.
            asked: dict[str, ApprovalAsked] = {}
            for run in dict.fromkeys(row.run_id for row in rows):
                asked |= await self._find_asked(run)
            yield [
                self._build(row, asked.get(row.approval_id))
                for row in rows
                if row.status != "open" or row.approval_id in asked
            ]
            after = rows[-1].number

    async def get(self, name: str) -> ApprovalQuestion:
        """Return an approval by ID, unique prefix, or `latest`. Raises `ApprovalUnknown`, `UsageError`."""
        if name == "latest":
            name = await self._get_latest_id()
        # An exact ID sorts before longer ones with the same prefix, so two rows are enough.
        found = await self._store.find_approvals(name, limit=2) if name else []
        if await self._expire(found):
            found = await self._store.find_approvals(name, limit=2)
        if not found:
            raise ApprovalUnknown(
                f"There is no approval {name!r}", hint="Run `agent approvals list` to list pending approvals"
            )
        if len(found) > 1 and found[0].approval_id != name:
            raise UsageError(f"More than one approval starts with {name!r}", hint="Add more characters of the ID")
        row = found[0]
        return self._build(row, (await self._find_asked(row.run_id)).get(row.approval_id))

    async def _get_latest_id(self) -> str:
        """Return the ID of the pending approval. With several, `latest` could be a call that the user has not seen."""
        await self._expire_open("")
        pending = await self._store.list_approvals(status="open", limit=2)
        if not pending:
            raise ApprovalUnknown(
                "No approval is pending", hint="Run `agent approvals list --all` to list decided approvals"
            )
        if len(pending) > 1:
            raise UsageError(
                "More than one approval is pending, so `latest` doesn't name one",
                hint="Run `agent approvals list`, then use an ID",
            )
        return pending[0].approval_id

    async def _find_asked(self, run_id: str) -> dict[str, ApprovalAsked]:
        """Read the approval entries of a run's journal, by approval ID."""
        return {entry.approval_id: entry for entry in await read_entries_of(self._store, run_id, ApprovalAsked)}

    async def attempts(self, question: ApprovalQuestion) -> list[ApprovalAttempt]:
        return await self._store.list_attempts(question.row.approval_id)

    async def look(self, question: ApprovalQuestion, arguments: dict[str, JsonValue] | None = None) -> CallSnapshot:
        """Return the effect that the call would have now, with its own or other arguments."""
        return await self._look(question.tool, question.arguments if arguments is None else arguments)

    async def is_stale(self, question: ApprovalQuestion) -> bool:
        """Return True if the files of an open call changed since its preview.

        Scripts have no preview here; the run checks their files itself before it starts them.
        """
        base = question.asked.base if question.asked is not None else ""
        if not base or question.row.status != "open":
            return False
        now = (await self.look(question)).base
        return bool(now) and now != base

    async def decide(self, question: ApprovalQuestion, reply: Reply) -> ApprovalQuestion:
        """Record a decision. The first one counts; later ones raise `ApprovalClosed` with the name of its decider."""
        edited: bytes | None = None
        if reply.arguments is not None:
            if wrong := await question.get_wrong_arguments(reply.arguments):
                raise UsageError(f"The edited arguments cannot be used: {wrong}", hint="Nothing was decided")
            # Stored with the decision: if the files change before the edited call runs, the run asks again.
            found = await self._look(question.tool, reply.arguments)
            edited = render_edited_call(question.tool, reply.arguments, found)
        # The store counts the first decision only, so expiry and decision can't both win.
        await self._expire([question.row])
        counted = await self._store.decide_approval(
            question.row.approval_id,
            status=reply.decision,
            decided_by=reply.by,
            reason=reply.reason,
            edited_payload=edited,
        )
        decided = await self.get(question.row.approval_id)
        if not counted:
            raise ApprovalClosed(
                _describe_closed(decided.row), hint="Only the first decision counts; yours was recorded"
            )
        return decided

    async def list_decisions(self, run_id: str, asking: dict[str, str]) -> list[ApprovalDecided]:
        """List the decisions about these approvals, given as step by approval ID."""
        rows = [row for row in await self._store.list_approvals(run_id=run_id) if row.approval_id in asking]
        if await self._expire(rows):
            # Read again: a decision of another process may have come before the expiry, and then it counts.
            return await self.list_decisions(run_id, asking)
        return [_build_entry(row) for row in rows if row.status != "open"]

    async def close(self, run_id: str, *, status: str) -> None:
        """Close the open approvals of a run that has ended."""
        reason = RUN_CANCELED if status == "canceled" else RUN_ENDED
        for row in await self._store.list_approvals(run_id=run_id, status="open"):
            await self._store.decide_approval(row.approval_id, status="expired", decided_by=EXPIRY, reason=reason)

    def _build(self, row: ApprovalRow, asked: ApprovalAsked | None) -> ApprovalQuestion:
        tool, arguments = parse_call(row.payload)
        return ApprovalQuestion(
            row=row, asked=asked, tool=tool, arguments=arguments, refuse=self._refuse, look=self._look
        )

    async def _expire_open(self, run_id: str) -> None:
        after = 0
        while rows := await self._store.list_approvals(run_id=run_id, status="open", after=after, limit=_PAGE):
            await self._expire(rows)
            after = rows[-1].number

    async def _expire(self, rows: list[ApprovalRow]) -> bool:
        """Close the expired ones of these approvals. Return True if there were any."""
        now = self._clock.now()
        late = [row for row in rows if row.status == "open" and row.expires_at is not None and row.expires_at <= now]
        for row in late:
            await self._store.decide_approval(
                row.approval_id, status="expired", decided_by=EXPIRY, reason="No decision came in time"
            )
        return bool(late)


def parse_call(payload: bytes) -> tuple[str, dict[str, JsonValue]]:
    """Parse a call that `render_call` wrote."""
    call = cast("dict[str, JsonValue]", json.loads(payload))  # written by `render_call` only
    return str(call["tool"]), cast("dict[str, JsonValue]", call["arguments"])


def _build_entry(row: ApprovalRow) -> ApprovalDecided:
    assert row.status != "open"
    decided = ApprovalDecided(
        approval_id=row.approval_id,
        step_id=row.step_id,
        decision=row.status,
        decided_by=row.decided_by,
        reason=row.reason,
    )
    if row.edited_payload is None:
        return decided
    found = _parse_found(row.edited_payload)
    return structs.replace(
        decided,
        edited_arguments=parse_call(row.edited_payload)[1],
        edited_base=found.base,
        edited_leads_to=found.leads_to,
    )


def _parse_found(payload: bytes) -> CallSnapshot:
    call = cast("dict[str, JsonValue]", json.loads(payload))  # written by `render_edited_call` only
    leads = call.get("leads_to")
    return CallSnapshot(str(call.get("base", "")), tuple(map(str, leads)) if isinstance(leads, list) else ())


def _describe_closed(row: ApprovalRow) -> str:
    if row.status == "expired" and row.reason == RUN_CANCELED:
        return f"Approval {row.approval_id!r} is closed: its run was canceled"
    if row.status == "expired" and row.reason == RUN_ENDED:
        return f"Approval {row.approval_id!r} is closed: its run has ended"
    if row.status == "expired":
        return f"Approval {row.approval_id!r} expired before it was decided"
    return f"Approval {row.approval_id!r} was already {row.status} by {row.decided_by!r}"


type Asker = Callable[[ApprovalQuestion], Awaitable[Reply | None]]
"""Asks the user about a call and may show the other pending ones of the reply; None leaves the call open."""


async def ask_for_approval(
    state: RunState, ask: Asker | None, approvals: Approvals, *, stopper: Stopper
) -> frozenset[str] | None:
    """Ask the user, and return the IDs of approvals whose decision is remembered; None if the run stays paused."""
    if ask is None or stopper.is_set or state.pause is None or state.pause.pause != "approval":
        return None
    asked = [step for step in state.steps if step.approval_id]
    every = [
        replace(await approvals.get(step.approval_id), number=number, total=len(asked))
        for number, step in enumerate(asked, start=1)
        if step.phase == "asking"
    ]
    first, *others = every
    # A signal cancels the block below, which then ends without a reply.
    reply: Reply | None = None
    with stopper.interruptible():
        reply = await ask(replace(first, others=tuple(each for each in others if each.row.status == "open")))
    if reply is None:
        return None
    remembered: set[str] = set()
    for question in every if reply.is_for_all else [first]:
        # Another approver may have been faster. Then the run continues with that decision.
        with suppress(ApprovalClosed):
            await approvals.decide(question, reply)
            remembered |= {question.row.approval_id} if reply.remember else set()
    return frozenset(remembered)


def can_ask(state: RunState, ask: Asker | None) -> bool:
    """Return True if the run waits for an approval and there is an asker."""
    return ask is not None and state.pause is not None and state.pause.pause == "approval"
