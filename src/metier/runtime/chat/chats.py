"""A chat: one context with one run per message. Its state is in the store, so the process may die at any time."""

import dataclasses
import hashlib
from collections.abc import Sequence

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.context.conversation import MAX_FACT_LENGTH, MAX_KEY_LENGTH, KnownFact, PastTurn, find_facts, name_fact
from metier.context.decoder import build_step
from metier.engine.loop import hold_lease
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import build_memory_key
from metier.errors import UsageError, unwrapped
from metier.ids import get_user
from metier.providers.model_names import ModelName, parse_model_name
from metier.providers.options import OFFLINE
from metier.runtime.answers import Answer, build_raise
from metier.runtime.approval_questions import ApprovalQuestion
from metier.runtime.attachments import GivenFile, TaskWords, attach_files, attach_given, can_see
from metier.runtime.build import check_budget
from metier.runtime.chat.commands import MARK, TypedApproval, use_typed
from metier.runtime.chat.conversations import (
    CHOICES,
    OWN_FACTS,
    TOLD_FACTS,
    Conversation,
    build_extra_input,
    build_stated_facts,
    build_turn_event,
    build_undone_event,
    get_measures,
    list_missing,
    load_turn,
    read_conversation,
    summarize_if_due,
)
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.driver import UNATTENDED, DriveOptions, LeaseHolder
from metier.runtime.records.index_rows import TYPED, find_row_cost
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.runtime.status import RunStatus, can_reopen, get_status
from metier.runtime.workspace.agents import BUILT_IN, SUMMARIZER, ResolvedAgent, is_built_in, resolve_agent
from metier.runtime.workspace.lookup import list_ids
from metier.store.base import RunRow
from metier.store.contexts import (
    MAX_POCKET_FACTS_PER_BUCKET,
    ContextChange,
    ContextState,
    NewEvent,
    NewFact,
    check_names,
)
from metier.store.failures import LeaseHeld, VersionConflictError

CHAT = "chat"
"""Key in a context's state that marks a chat."""
UNDONE = "undone"
"""Reason in the index that marks an undone turn."""
PARTIAL = "partial"
"""Bucket of facts with partial replies of interrupted turns, by run."""
MAX_PARTIAL = 8_000
MAX_RUNS = 100_000
"""Limit above the number of runs of any conversation."""

ALWAYS = "always"


class ChatRequest(Struct, frozen=True, kw_only=True):
    context_id: str = ""
    """Name or ID of the conversation. An unknown one starts a new conversation; empty for a new one with a new ID."""
    is_continued: bool = False
    """Continue the most recent conversation."""
    agent: str = ""
    model: str = ""
    may_name_built_in: bool = False
    """True if `built-in` may be named to bypass the default agent, which only a user at this machine may do."""


class Chat:
    """One conversation. Created by `open_chat`."""

    def __init__(
        self, runtime: Runtime, conversation: Conversation, *, agent: str, model: str, may_name_built_in: bool = False
    ) -> None:
        self.runtime = runtime
        self.context_id = conversation.state.context_id
        self.is_new = conversation.state.version == 0 and not conversation.turns
        self.agent_id = agent
        self.model = model
        """The chosen model; empty for the agent's own."""
        self._may_name_built_in = may_name_built_in
        self._clean = build_host_cleaner(runtime.host).text

    def resolve(self) -> ResolvedAgent:
        """Resolve the agent from its current files. Raises `UsageError`, `ConfigError`."""
        return resolve_agent(self.runtime.host, self._get_id(self.agent_id), model=self.model)

    def _get_id(self, agent_id: str) -> str:
        """Return the ID for `resolve_agent`."""
        is_named = self._may_name_built_in and is_built_in(self.runtime.host, agent_id)
        return BUILT_IN if is_named else agent_id or BUILT_IN

    def list_models(self) -> tuple[str, ...]:
        """List the models to choose from, the current one first; empty if any model is allowed."""
        agent = self.resolve()
        if agent.model.provider == OFFLINE:
            return (OFFLINE,)
        current = ModelName(agent.model.provider, agent.model.name)
        default = self.runtime.host.settings.model.provider
        others = agent.models or agent.model.allowed_models
        return (
            self.answered_by,
            *(name for name in dict.fromkeys(others) if parse_model_name(name, provider=default) != current),
        )

    @property
    def answered_by(self) -> str:
        """Return the model of the next turn, with its provider if it differs from the settings."""
        options = self.resolve().model
        if options.provider == OFFLINE:
            return OFFLINE
        is_default = options.provider == self.runtime.host.settings.model.provider
        return options.name if is_default else str(ModelName(options.provider, options.name))

    async def use_model(self, name: str) -> None:
        """Use a model from the next turn on. Raises `UsageError` if the agent may not use it."""
        if self.answered_by == OFFLINE:
            raise UsageError("The offline backbone has no models to choose from", hint="Choose a provider: --provider")
        resolve_agent(self.runtime.host, self._get_id(self.agent_id), model=name)
        self.model = name
        await self._commit(ContextChange(facts=self._build_choices()))

    def list_agents(self) -> tuple[str, ...]:
        """List the IDs of the workspace's agents."""
        return tuple(list_ids(self.runtime.host.workspace, "agent"))

    async def use_agent(self, agent_id: str) -> None:
        """Use an agent and its model from the next turn on. Raises `UsageError` if it doesn't exist."""
        resolve_agent(self.runtime.host, self._get_id(agent_id))
        self.agent_id, self.model = agent_id, ""
        await self._commit(ContextChange(facts=self._build_choices()))

    def start_new(self) -> None:
        """Start another conversation with the next message, with the same agent and model."""
        self.context_id = self.runtime.host.ids.run_id(self.runtime.host.clock.now())
        self.is_new = True

    async def switch(self, context_id: str) -> None:
        """Switch to another conversation, with its agent and model. Raises `UsageError`."""
        conversation = await read_conversation(self.runtime.store, context_id)
        if not conversation.state.version and not conversation.turns:
            raise UsageError(f"There is no conversation {context_id!r}", hint="`/resume` lists them")
        had = conversation.choices
        self.context_id, self.is_new = context_id, False
        self.agent_id, self.model = had.get("agent", self.agent_id), had.get("model", "")

    async def find_cost(self) -> float | None:
        """Return the cost of all runs including summaries, or None if a price is unknown."""
        rows = await self.runtime.store.list_runs(context_id=self.context_id, limit=MAX_RUNS)
        costs = [find_row_cost(row) for row in rows]
        return None if None in costs else sum(cost or 0.0 for cost in costs)

    async def compact(self) -> int:
        """Summarize all turns but the last one now; return their number."""
        await self.close_open_turn()
        before = await self._read()
        after = await summarize_if_due(self.runtime, before, agent=self.resolve(), watch=UNATTENDED, is_wanted=True)
        return len(before.turns) - len(after.turns)

    async def run_typed(self, command: str, watch: DriveOptions = UNATTENDED) -> RunState:
        """Run a shell command that the user typed, as a turn without a model."""
        agent = self.resolve()
        typed = replace(agent, host=use_typed(agent.host, command))
        watch = replace(watch, ask=TypedApproval(command, by=get_user()))
        await self.close_open_turn()
        conversation = await self._begin(await self._read(), f"{MARK}{command}")
        extra_input = build_extra_input(
            conversation, get_measures(agent.host.settings), shows_media=can_see(agent.host)
        )
        request = RunRequest(task=f"{MARK}{command}", extra_input=extra_input, context_id=self.context_id)
        return await self._keep(await self.runtime.start_as(typed, request, watch))

    async def keep_partial(self, run_id: str, text: str) -> None:
        """Save the partial reply of an interrupted turn for later turns."""
        if text.strip():
            # A fact of the conversation and not an entry of the journal: a run must not act on what it did not finish.
            value: JsonValue = {"text": self._clean(text)[:MAX_PARTIAL]}
            await self._commit(ContextChange(facts=(NewFact(bucket=PARTIAL, key=run_id, value=value),)))

    async def save_choices(self) -> None:
        """Store the agent and model before the first message."""
        await self._commit(ContextChange(facts=self._build_choices()))

    async def send(
        self,
        message: str,
        watch: DriveOptions = UNATTENDED,
        *,
        is_typed: bool = True,
        given: Sequence[GivenFile] = (),
        run_id: str = "",
    ) -> RunState:
        """Send a message and drive the turn until it ends or waits. An open turn is ended first.

        Raises `UsageError`, `LeaseHeld` and `VersionConflictError` before any model request.
        """
        agent = self.resolve()
        check_budget(agent.host)
        # Only a user at this machine may attach files outside of the workspace, not the sender of a queued message.
        words = TaskWords(text=message, agent=agent.id, is_typed=is_typed and not watch.lease_terms.queue)
        attached = await run_sync(attach_files, self.runtime.host, words)
        brought = await run_sync(attach_given, given)
        await self.close_open_turn()
        conversation = await self._read()
        # The summary is needed before the turn, so it is not left to workers like the turn itself.
        summing = UNATTENDED if watch.lease_terms.queue else watch
        conversation = await summarize_if_due(self.runtime, conversation, agent=agent, watch=summing)
        conversation = await self._begin(conversation, message)
        extra_input = build_extra_input(
            conversation, get_measures(agent.host.settings), shows_media=can_see(agent.host)
        )
        request = RunRequest(task=message, extra_input=extra_input, context_id=self.context_id, run_id=run_id)
        request = brought.add_to(attached.add_to(request))
        return await self._keep(await self.runtime.start_as(agent, request, watch, queue=watch.lease_terms.queue))

    async def can_steer(self, message: str) -> bool:
        """Return True if the message can be added to the running turn: the settings allow it, and it has no files."""
        if self.runtime.host.settings.chat.while_working != "steer":
            return False
        words = TaskWords(text=message, agent=self.resolve().id, is_typed=True)
        attached = await run_sync(attach_files, self.runtime.host, words)
        return not (attached.texts or attached.media)

    async def find_open_turn(self) -> RunStatus | None:
        """Return the last turn if it has not ended, because it waits, was stopped or its process died."""
        missing = await list_missing(self.runtime.store, await self._read())
        if not missing:
            return None
        state = await self.runtime.read(missing[-1].run_id)
        return None if state.phase in FINAL else await get_status(self.runtime.store, state, row=missing[-1])

    async def continue_turn(self, answer: Answer | None = None, watch: DriveOptions = UNATTENDED) -> RunState | None:
        """Continue the open turn; None if there is none. Raises `LeaseHeld` if another process drives it."""
        turn = await self.find_open_turn()
        if turn is not None:
            return await self._keep(await self._get_runtime(turn.state).resume(turn.state.run_id, answer, watch))
        ended = await self.find_reopenable()
        if ended is None:
            return None
        again = replace(answer or Answer(by=CHAT), raised=build_raise(ended), reopens=True)
        return await self._keep(await self.runtime.resume(ended.run_id, again, watch))

    def _get_runtime(self, state: RunState) -> Runtime:
        """Return the runtime for continuing a run. One of a typed command continues without a model."""
        started = state.started
        if started is None or started.provider != TYPED:
            return self.runtime
        return Runtime(use_typed(self.runtime.host, started.task.removeprefix(MARK)), self.runtime.store)

    async def find_reopenable(self) -> RunState | None:
        """Return the last turn if a limit or its provider ended it."""
        conversation = await self._read()
        if not conversation.turns:
            return None
        state = await self.runtime.read(conversation.turns[-1].run_id)
        return state if can_reopen(state) else None

    async def close_open_turn(self) -> RunStatus | None:
        """End a waiting or interrupted turn, and log turns that ended while no chat was open."""
        ended: RunStatus | None = None
        # Before the next turn starts: it would not contain a turn that is missing from the log.
        for row in await list_missing(self.runtime.store, await self._read()):
            state = await self.runtime.read(row.run_id)
            if state.phase not in FINAL:
                ended = await get_status(self.runtime.store, state, row=row)
                state = await self._end(row)
            if state.started is not None:
                await self._keep(state)
        return ended

    async def undo(self) -> PastTurn:
        """Remove the last turn from the conversation, but not from the store. Raises `UsageError`."""
        await self.close_open_turn()
        conversation = await self._read()
        if not conversation.turns:
            hint = "What the summary covers cannot be taken back" if conversation.state.summary else ""
            raise UsageError("There is no turn to take back", hint=hint)
        last = conversation.turns[-1]
        facts = await self.runtime.store.contexts.list_facts(self.context_id, bucket=TOLD_FACTS)
        told = [fact for fact in facts if isinstance(fact.value, dict) and fact.value.get("turn") == last.turn]
        forgotten = tuple((TOLD_FACTS, fact.key) for fact in told)
        # The event decides. A crash before the index is marked only shows the turn in listings.
        await self._commit(ContextChange(events=(build_undone_event(last.run_id),), forgotten=forgotten))
        await self._mark_undone(last.run_id)
        return last

    async def get_last_turn(self) -> str:
        """Return the run ID of the last turn that was not undone, or an empty string."""
        rows = await self.runtime.store.list_runs(context_id=self.context_id, limit=MAX_RUNS)
        return next((row.run_id for row in rows if is_turn(row)), "")

    async def list_facts(self) -> tuple[KnownFact, ...]:
        return (await self._read()).facts

    async def remember(self, text: str) -> KnownFact:
        """Remember a fact in this conversation, given as `name: fact` or as a sentence. Raises `UsageError`."""
        name, colon, rest = text.partition(":")
        key, fact = (name, rest) if colon and len(name) <= MAX_KEY_LENGTH and rest.strip() else (name_fact(text), text)
        key, fact = " ".join(key.split()).casefold(), " ".join(self._clean(fact).split())
        if not fact:
            raise UsageError("There is nothing to remember", hint="Write `/remember name: fact`, or a sentence")
        if len(fact) > MAX_FACT_LENGTH:
            raise UsageError(
                f"A fact of {len(fact)} characters is too long",
                hint=f"Keep it within {MAX_FACT_LENGTH}; use a file for more",
            )
        own = [known for known in await self.list_facts() if known.is_own and known.key != key]
        if len(own) >= MAX_POCKET_FACTS_PER_BUCKET:
            raise UsageError(f"{len(own)} facts are kept, and there is no room for more", hint="`/forget` one first")
        await self._commit(ContextChange(facts=(NewFact(bucket=OWN_FACTS, key=key, value={"text": fact}),)))
        return KnownFact(key=key, text=fact, is_own=True)

    async def forget(self, key: str) -> None:
        """Delete a fact. Raises `UsageError` if there is none."""
        wanted = " ".join(key.split()).casefold()
        known = [fact.key for fact in await self.list_facts()]
        if wanted not in known:
            raise UsageError(f"No fact is called {key!r}", hint="`/facts` lists them")
        await self._commit(ContextChange(forgotten=((OWN_FACTS, wanted), (TOLD_FACTS, wanted))))

    async def find_approvals(self) -> list[ApprovalQuestion]:
        """List the pending approvals of this conversation."""
        turn = await self.find_open_turn()
        return await self.runtime.approvals.list_all(run_id=turn.waiting.run_id, status="open") if turn else []

    async def list_turns(self) -> list[tuple[RunState, PastTurn]]:
        """List the turns that were not undone, from their journals, oldest first."""
        rows = await self.runtime.store.list_runs(context_id=self.context_id, limit=MAX_RUNS)
        wanted = [row for row in reversed(rows) if is_turn(row)]
        return [await self._load(row.run_id) for row in wanted]

    async def _load(self, run_id: str) -> tuple[RunState, PastTurn]:
        """Load a turn from its journal, with the partial reply of an interrupted one."""
        state, turn = await load_turn(self.runtime.store, run_id)
        if state.failure is None or state.failure.status != "canceled":
            return state, turn
        facts = await self.runtime.store.contexts.list_facts(self.context_id, bucket=PARTIAL)
        said = next((fact.value for fact in facts if fact.key == run_id), None)
        if not isinstance(said, dict):
            return state, turn
        return state, replace(turn, answer=f"{said.get('text', '')}\n[The person stopped the reply here]")

    async def _read(self) -> Conversation:
        return await read_conversation(self.runtime.store, self.context_id)

    async def _begin(self, conversation: Conversation, message: str) -> Conversation:
        """Claim the next turn. Of two concurrent messages, the second fails here, before any model request."""
        state = conversation.state
        turn = state.current_turn + 1 if state.version else 1
        following = dataclasses.replace(state, current_turn=turn, task_state="in_progress", agent_state_detail=CHAT)
        told = find_facts(self._clean(message))
        change = ContextChange(
            state=following,
            # The store rejects the change if another process wrote to the conversation since it was read.
            expected_version=state.version,
            facts=(*build_stated_facts(told, turn=turn), *self._build_choices()),
        )
        try:
            await self._commit(change)
        except VersionConflictError as conflict:
            raise VersionConflictError(
                f"Another process wrote to conversation {self.context_id!r} at the same time; nothing was asked",
                hint="Say it again to go on from there",
            ) from conflict
        return await self._read()

    async def _keep(self, state: RunState) -> RunState:
        """Record the outcome of a turn. After a crash it is restored from the journal."""
        events: tuple[NewEvent, ...] = ()
        stored = (await self._read()).state
        if state.phase in FINAL:
            _, turn = await self._load(state.run_id)
            cleaned = replace(
                turn,
                said=self._clean(turn.said),
                answer=self._clean(turn.answer),
                notes=tuple(map(self._clean, turn.notes)),
            )
            events = (build_turn_event(state, cleaned, number=stored.current_turn),)
        now = dataclasses.replace(stored, task_state=state.status, agent_state_detail=CHAT)
        await self._commit(ContextChange(state=now, events=events))
        return state

    async def _end(self, row: RunRow) -> RunState:
        """Cancel a run without a driver. Raises `LeaseHeld` if another process drives it."""
        if not row.driver:
            state = await self.runtime.cancel(row.run_id, by=CHAT)
            if state.started is None or state.phase in FINAL:
                return state
        raise LeaseHeld(
            f"Run {row.run_id!r} of this conversation is driven by {row.driver or 'another process'!r}",
            hint=f"Wait with `agent runs watch {row.run_id}`, or end it with `agent runs cancel {row.run_id}`",
        )

    async def _mark_undone(self, run_id: str) -> None:
        """Mark the turn as undone in the index."""
        driver = LeaseHolder(store=self.runtime.store, owner=self.runtime.host.owner)
        with unwrapped():
            async with hold_lease(run_id, driver) as lease:
                await self.runtime.store.update_run(lease, {"reason": UNDONE})

    def _build_choices(self) -> tuple[NewFact, ...]:
        chosen = {"agent": self.agent_id, "model": self.model}
        return tuple(NewFact(bucket=CHOICES, key=key, value=value) for key, value in chosen.items())

    async def _commit(self, change: ContextChange) -> ContextState:
        return await self.runtime.store.contexts.commit(self.context_id, change)


async def open_chat(runtime: Runtime, request: ChatRequest) -> Chat:
    """Start or continue a conversation with its last agent and model. Raises `UsageError`."""
    if request.is_continued and request.context_id:
        raise UsageError("--continue and --context exclude each other", hint="Name the conversation, or take the last")
    context_id = request.context_id
    if request.is_continued:
        chats = await list_chats(runtime, limit=1)
        if not chats:
            raise UsageError("There is no conversation to continue", hint="Start one with `agent chat`")
        context_id = chats[0].context_id
    context_id = context_id or runtime.host.ids.run_id(runtime.host.clock.now())
    check_names(context_id=context_id)
    conversation = await read_conversation(runtime.store, context_id)
    had = conversation.choices
    last_agent = had.get("agent", "")
    # A user at this machine may have chosen it earlier. Other senders must not get past the default agent with it.
    if not request.may_name_built_in and is_built_in(runtime.host, last_agent):
        last_agent = ""
    agent = request.agent or last_agent or runtime.host.settings.runtime.agent or BUILT_IN
    is_same = not request.agent or request.agent == had.get("agent")
    model = request.model or (had.get("model", "") if is_same else "")
    chat = Chat(runtime, conversation, agent=agent, model=model, may_name_built_in=request.may_name_built_in)
    # Fails now instead of with the first message if the agent or model of the last turn no longer exists.
    chat.resolve()
    return chat


def is_turn(row: RunRow) -> bool:
    """Return True for a turn of the user that was not undone. Summaries are no turns."""
    return row.agent != SUMMARIZER and row.reason != UNDONE


async def list_chats(runtime: Runtime, *, limit: int = 100) -> Sequence[ContextState]:
    """List the conversations that are chats, most recent first."""
    # The limit comes afterwards, because other programs store contexts too.
    found = await runtime.store.contexts.list_contexts(limit=MAX_RUNS)
    return [state for state in found if state.agent_state_detail == CHAT][:limit]


async def list_always(chat: Chat) -> list[str]:
    """Describe the calls that are no longer asked about."""
    facts = await chat.runtime.store.contexts.list_facts(chat.context_id, bucket=ALWAYS)
    return [str(fact.value) for fact in facts]


async def is_always(chat: Chat, question: ApprovalQuestion) -> bool:
    """Return True if the user answered "always" to a similar call."""
    return not question.leads_to_running_file and _build_key(question) in await list_always(chat)


async def allow_always(chat: Chat, question: ApprovalQuestion) -> None:
    """Stop asking about calls like this one in this conversation; denied calls stay denied."""
    if len(await list_always(chat)) >= MAX_POCKET_FACTS_PER_BUCKET:
        # The store would drop the oldest answer to make room. Asking again is safer.
        return
    key = _build_key(question)
    # Hashed, because the store limits the length of a fact's key, and a command may be longer.
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    change = ContextChange(facts=(NewFact(bucket=ALWAYS, key=name, value=key),))
    await chat.runtime.store.contexts.commit(chat.context_id, change)


def _build_key(question: ApprovalQuestion) -> str:
    """Build a key with the same scope as "always in this run"; see `build_memory_key`."""
    return build_memory_key(build_step(question.tool, question.arguments, call_id=""))
