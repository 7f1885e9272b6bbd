"""Replay of a recorded run without effects: models and tools answer from the recording.

It uses `drive` and `decide` with another `perform`. Requests are composed again and their hashes compared, replies are
decoded again, and verdicts and intents computed again. Taken from the recording is everything from outside: replies,
results of steps, disclosed text, previews, disabled tools, answers of users, and interruptions.
"""

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import TypeGuard, override

from msgspec import Struct
from msgspec.structs import replace

from metier.engine import actions as a
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted, ModelReplied
from metier.engine.entries.question import ApprovalAsked, InputAsked
from metier.engine.entries.run import ModelChanged, RunAdopted, RunFailed, RunPaused, RunStarted
from metier.engine.entries.skill import RANKING_VERSION, ContextDisclosed, SkillsRanked
from metier.engine.entries.step import HooksRan, StepFinished, StepInDoubt, StepRetried
from metier.engine.entries.task import ChildRequested, ResultChecked
from metier.engine.execution.child_execution import list_open_delegations
from metier.engine.execution.step_execution import build_intent, record_intents
from metier.engine.journal import RunLog
from metier.engine.loop import drive
from metier.engine.perform import perform
from metier.engine.replay.recorded_store import RecordedStore
from metier.engine.replay.recording import Diverged, Divergence, Recording, is_given
from metier.engine.services import Services, use_model
from metier.engine.state.fold import apply
from metier.engine.state.phases import IllegalTransition
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step
from metier.engine.stopper import Stopper
from metier.engine.turn_cache import Fingerprint, Fingerprints, TurnCache
from metier.errors import PromptTooLarge
from metier.events.record import EventRecord
from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer
from metier.providers.failures import CallFailed, ContextTooLong, ToolsUnsupported
from metier.providers.feature_support import Feature
from metier.routing.skill import FoundSimilar, Similar
from metier.store.base import Lease
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sinks import Cleaner, EventWriter, RunScope

_NO_TRACE = "0" * 32


class Replayed(Struct, frozen=True, kw_only=True):
    """The progress of a replay."""

    entries: tuple[Entry, ...]
    """The record, with dependent entries computed again on request."""
    compared: int
    """Number of entries that matched the record."""
    given: int
    """Number of a fork's entries that were adopted from its parent and not driven again."""
    divergence: Divergence | None = None


async def replay(run_id: str, entries: Sequence[Entry], services: Services, *, rederive: bool = False) -> Replayed:
    """Compare a run with its record, entry by entry, up to the first difference.

    With `rederive`, entries of the run are replaced by those that it would write now, and only another kind of entry is
    a difference. This is for recordings whose input was changed on purpose, such as redacted ones.
    """
    recording = Recording(entries, rederive=rederive)
    store = RecordedStore(services.store, recording)
    state = RunState(run_id)
    given = _take_over(recording, state)
    player = _Player(recording)
    provider = _RecordedProvider(recording, _get_provider(entries))
    access = partial(_read_recorded_access, recording, state)
    features = _RecordedFeatures(recording)
    skill_index = replace(services.skill_index, similarities=_RecordedSimilarities(recording))
    # Everything that reaches beyond the run is replaced. What is left is pure, or reads the store.
    played = replace(
        services,
        skill_index=skill_index,
        store=store,
        provider=provider,
        fallbacks=(),
        read_access=access,
        features=features,
        cache=TurnCache(fingerprints=_RecordedFingerprints(recording)),
        recall_ranking=partial(_recall_ranking, recording),
    )
    # Never checked: the recorded store has no leases.
    lease = Lease(run_id=run_id, owner=services.owner, token=0)
    log = RunLog(state, store=store, lease=lease, writer=_silent_writer(run_id, services))
    try:
        await _play(player, log, played)
    except Diverged as diverged:
        return Replayed(
            entries=tuple(recording.entries), compared=recording.position, given=given, divergence=diverged.divergence
        )
    return Replayed(entries=tuple(recording.entries), compared=recording.position, given=given)


class _FromOutside(Exception):
    """The next recorded entry comes from outside of the run."""


class _EndOfRecord(Exception):
    """All recorded entries were replayed."""


async def _play(player: "_Player", log: RunLog, services: Services) -> None:
    """Replay one start or resume of the run per pass."""
    while not player.recording.is_over:
        changed = await player.give(log)
        services = services if changed is None else _change_model(services, changed)
        try:
            await drive(log, services, Stopper(), perform=player.perform)
        except _EndOfRecord:
            return
        except _FromOutside:
            pass
        if not player.recording.is_over and not is_given(player.recording.peek()):
            raise Diverged(player.recording.diverge(None))


def _take_over(recording: Recording, state: RunState) -> int:
    """Fold the entries that a fork copied, without comparing them: other definitions may have produced them."""
    first = recording.peek()
    count = first.forked_at if isinstance(first, RunStarted) else 0
    # Entries before an adoption were produced by the settings and rules of another host.
    adopted = (number for number, entry in enumerate(recording.entries, start=1) if isinstance(entry, RunAdopted))
    count = max((count, *adopted))
    for entry in recording.entries[:count]:
        apply(state, entry)
    recording.position = min(count, len(recording.entries))
    return recording.position


class _Player:
    """`perform` for a replay."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    async def give(self, log: RunLog) -> ModelChanged | None:
        """Record entries from outside; return the last change of the model. Raises `Diverged`."""
        changed: ModelChanged | None = None
        while is_given(entry := self.recording.peek()) and entry is not None:
            await self._record(entry, log)
            changed = entry if isinstance(entry, ModelChanged) else changed
        return changed

    async def perform(self, action: a.Action, log: RunLog, services: Services) -> None:
        if self.recording.is_over:
            raise _EndOfRecord
        if is_given(self.recording.peek()):
            raise _FromOutside
        match action:
            case a.Disclose():
                await self._disclose(log)
            case a.RunSteps() | a.AskApproval():
                await self._run_or_ask(action, log, services)
            case a.SettleDoubt():
                await self._settle(action, log, services)
            case a.CallModel():
                await self._ask(action, log, services)
            case a.Delegate():
                await self._delegate(action, log, services)
            case a.AwaitChild():
                await self._give_results([step for step, _ in list_open_delegations(log.state)], log)
            case a.CheckResult() | a.RunHooks():
                await self._give_verdict(action, log)
            case _:
                await perform(action, log, services)
                await log.record()  # compare inferred entries now: the next entry may come from outside

    async def _run_or_ask(self, action: a.RunSteps | a.AskApproval, log: RunLog, services: Services) -> None:
        entry = self.recording.peek()
        step_ids = action.step_ids if isinstance(action, a.RunSteps) else (action.step_id,)
        # It failed without a question, which only the files can tell. Refusals by rules, which are computed again, have
        # a verdict.
        if isinstance(entry, StepFinished) and entry.step_id in step_ids and not entry.verdict:
            await self._record(entry, log)
        elif isinstance(action, a.RunSteps):
            await self._run(action, log, services)
        else:
            await perform(self._narrow(action), log, services)

    def _narrow(self, action: a.AskApproval) -> a.AskApproval:
        """Limit an approval to the recorded questions: earlier versions asked about one call at a time."""
        following = self.recording.entries[self.recording.position :]
        asked = [entry.step_id for entry in takewhile(lambda each: each.kind == "approval_asked", following)
                 if isinstance(entry, ApprovalAsked)]  # fmt: skip
        return replace(action, also=tuple(each for each in action.also if each[0] in asked))

    async def _ask(self, action: a.CallModel, log: RunLog, services: Services) -> None:
        before = log.state.cost_usd
        await perform(action, log, services)
        last = self.recording.entries[self.recording.position - 1]
        if isinstance(last, ModelReplied):
            # Use the recorded cost: price lists change.
            log.state.cost_usd = before + last.cost_usd

    async def _delegate(self, action: a.Delegate, log: RunLog, services: Services) -> None:
        """Replay a delegation from the recording; no child run is started."""
        has_child = False
        for step in (log.state.step(step_id) for step_id in (action.step_id, *action.also)):
            await log.record(build_intent(step, log, services))
            entry = self.recording.peek()
            if isinstance(entry, ChildRequested) and entry.step_id == step.step_id:
                await self._record(entry, log)
                has_child = True
            else:
                await self._give_results([step], log)
        if has_child:
            await self._record_pause(log)

    async def _give_verdict(self, action: a.CheckResult | a.RunHooks, log: RunLog) -> None:
        """Take the recorded verdict: files and programs may have changed since."""
        if isinstance(action, a.RunHooks):
            await self._give_answer(action, log)
            return
        entry = self.recording.peek()
        await self._record(entry if isinstance(entry, ResultChecked) else ResultChecked(), log)

    async def _give_answer(self, action: a.RunHooks, log: RunLog) -> None:
        """Take the recorded answers: a replay runs no hook."""
        entry = self.recording.peek()
        is_it = isinstance(entry, HooksRan) and (entry.event, entry.step_id) == (action.event, action.step_id)
        ran = HooksRan(event=action.event, step_id=action.step_id)
        await self._record(entry if is_it and entry is not None else ran, log)

    async def _disclose(self, log: RunLog) -> None:
        """Disclose the recorded text: the files may be gone."""
        entry = self.recording.peek()
        await self._record(entry if isinstance(entry, ContextDisclosed) else ContextDisclosed(), log)

    async def _run(self, action: a.RunSteps, log: RunLog, services: Services) -> None:
        """Replay steps from the recording: files and links may have changed since."""
        entry = self.recording.peek()
        if isinstance(entry, ApprovalAsked) and entry.step_id in action.step_ids:
            await self._record(entry, log)
            await self._record_pause(log)
            return
        await self._give_results(await record_intents(action, log, services), log)

    async def _give_results(self, steps: Sequence[Step], log: RunLog) -> None:
        wanted = {step.step_id for step in steps}
        for step in steps:
            entry = self.recording.peek()
            if entry is None:
                raise _EndOfRecord
            if is_given(entry):
                raise _FromOutside
            if isinstance(entry, ChildRequested) or (isinstance(entry, InputAsked) and entry.resumes):
                if entry.step_id not in wanted:
                    raise Diverged(self.recording.diverge(_awaited(step)))
                await self._record(entry, log)
                await self._record_pause(log)
                return
            if not _is_result(entry) or entry.step_id not in wanted:
                raise Diverged(self.recording.diverge(_awaited(step)))
            await self._record(entry, log)

    async def _settle(self, action: a.SettleDoubt, log: RunLog, services: Services) -> None:
        step = log.state.step(action.step_id)
        entry = self.recording.peek()
        if step.phase == "in_doubt" or not isinstance(entry, StepInDoubt):
            if step.phase == "in_doubt":
                await perform(action, log, services)
            else:
                await self._give_results([step], log)
            return
        # The state after the crash comes from outside: first the question, then its pause.
        await self._record(entry, log)
        await self._record_pause(log)

    async def _record_pause(self, log: RunLog) -> None:
        pause = self.recording.peek()
        if isinstance(pause, RunPaused):
            await self._record(pause, log)

    async def _record(self, entry: Entry, log: RunLog) -> None:
        try:
            await log.record(entry)
        except IllegalTransition as error:
            # The entry was already taken when it turned out that it can't be folded.
            self.recording.position -= 1
            divergence = self.recording.diverge(entry)
            raise Diverged(
                replace(divergence, sentence=f"The entry cannot follow what is before it: {error}")
            ) from error


def _change_model(services: Services, changed: ModelChanged) -> Services:
    provider = services.provider
    if isinstance(provider, _RecordedProvider):
        provider.name = changed.provider
    return use_model(services, changed.options, provider=changed.provider)


def _is_result(entry: Entry) -> TypeGuard[StepFinished | StepRetried]:
    """Return True for an entry that ends an intent: a result, or a blocked read-only attempt."""
    return isinstance(entry, StepFinished) or (isinstance(entry, StepRetried) and entry.wants_write)


def _awaited(step: Step) -> StepFinished:
    return StepFinished(step_id=step.step_id, status="succeeded", text="Run now, and its result awaited")


def _read_recorded_access(recording: Recording, state: RunState) -> frozenset[str]:
    """Return the tools that were disabled at the time of the recording."""
    entry = recording.peek()
    return frozenset(entry.disabled_tools) if isinstance(entry, ModelCallStarted) else state.disabled


class _RecordedProvider:
    """A provider that returns the recorded replies."""

    def __init__(self, recording: Recording, name: str) -> None:
        self.name = name
        self._recording = recording

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:  # noqa: ARG002
        # Only peek: the entry is taken when the engine records the reply.
        match self._recording.peek():
            case ModelReplied() as replied:
                return replied.reply
            case RunFailed() as failed if not is_given(failed):
                raise _RecordedFailure(failed)
            case ModelCallStarted(prompt_limit=int()):
                raise ContextTooLong("The provider found the request too long then")
            case ModelCallStarted(is_json=True):
                raise ToolsUnsupported("The endpoint took no tools then")
            case None:
                raise _EndOfRecord
            case _:
                raise _FromOutside

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002
        match self._recording.peek():
            case ModelCallStarted() as call:
                return call.counted_tokens
            case RunFailed(reason="prompt_too_large") as failed:
                raise PromptTooLarge(failed.message)
            case _:
                return None

    async def close(self) -> None:
        return None


class _RecordedFeatures:
    """The endpoint's features as recorded: the next recorded request shows whether tools were unsupported."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def is_unsupported(self, feature: Feature, model: str) -> bool:
        del model
        entry = self._recording.peek()
        return feature == "tools" and isinstance(entry, ModelCallStarted) and bool(entry.is_json)

    def mark_unsupported(self, feature: Feature, model: str) -> None:
        del feature, model


class _RecordedFingerprints(Fingerprints):
    """Fingerprints in the form of the record."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    @override
    def of(self, request: ModelRequest) -> Fingerprint:
        entry = self._recording.peek()
        return self.match(request, entry.request_hash if isinstance(entry, ModelCallStarted) else "")


def _recall_ranking(recording: Recording) -> SkillsRanked | None:
    """Return the recorded ranking if another version made it."""
    entry = recording.peek()
    return entry if isinstance(entry, SkillsRanked) and entry.version != RANKING_VERSION else None


class _RecordedSimilarities:
    """The recorded results of embeddings."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def find(self, query: str) -> FoundSimilar:
        del query
        entry = self._recording.peek()
        ranked = entry.similar if isinstance(entry, SkillsRanked) else ()
        return FoundSimilar(tuple(Similar(each.skill_name, each.score) for each in ranked))


class _RecordedFailure(CallFailed):
    """A recorded failure, raised again at once with the same message."""

    def __init__(self, failed: RunFailed) -> None:
        super().__init__(failed.message)
        self.reason = failed.reason  # pyright: ignore[reportAttributeAccessIssue]


class _Silence:
    """Drops the events of a replay."""

    def write(self, record: EventRecord) -> None:
        del record

    def close(self) -> None:
        return None


def _silent_writer(run_id: str, services: Services) -> EventWriter:
    scope = RunScope(run_id=run_id, trace_id=_NO_TRACE)
    return EventWriter(_Silence(), Cleaner(build_redactor()), scope=scope, clock=services.clock, ids=services.ids)


def _get_provider(entries: Sequence[Entry]) -> str:
    first = entries[0] if entries else None
    return first.provider if isinstance(first, RunStarted) else ""
