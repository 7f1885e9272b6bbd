"""The state of one conversation, for skill code: synchronous access to the store of the runs.

    with metier.create_state_store("ctx-1") as store:
        state = store.get_state()
        store.put_state(replace(state, task_state="input_required"), expected_version=state.version)

Everything is redacted before it is written. A store belongs to one thread, and nothing runs in the background.
"""

import asyncio
import logging
import os
import random
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from pydantic import JsonValue

from metier.errors import UsageError
from metier.ids import Clock, SystemClock
from metier.store.backend import StoreOptions, open_store
from metier.store.base import Store
from metier.store.contexts import (
    MAX_EVENTS_PER_CONTEXT,
    MAX_SUMMARY_SIZE_CHARS,
    Claim,
    Completion,
    ContextChange,
    ContextEvent,
    ContextState,
    NewEvent,
    NewFact,
    NewSummary,
    check_names,
)
from metier.store.failures import DuplicateMessageError, ResumeTokenRefused, VersionConflictError
from metier.store.resume_tokens import (
    LIFETIME_SECONDS,
    ResumeKeys,
    TokenSubject,
    check_token,
    load_resume_keys,
    sign_token,
)
from metier.store.summaries import SUMMARY_EVENT_THRESHOLD, Summarizer, summarize_by_extraction
from metier.telemetry.redaction import Json, Redactor, build_redactor
from metier.telemetry.secret_names import MARK

logger = logging.getLogger("metier.store")

_POLL_SECONDS = 0.02
_FIRST_PAUSE_SECONDS = 0.002
_MAX_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """Store, redactor and summarizer of a conversation."""

    redactor: Redactor
    """Removes the host's secrets from everything that is stored. `runtime.cleaning` builds it."""
    runs: Path = Path("runs")
    store: StoreOptions = field(default_factory=StoreOptions)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    clock: Clock = field(default_factory=SystemClock)
    summarize: Summarizer = summarize_by_extraction
    """Summarizes the events when there are enough. If it fails, the summary is an extract."""


def open_state_store(context_id: str, options: StateOptions) -> "StateStore":
    """Open the state of a conversation. Close it, or use it in a `with` block."""
    check_names(context_id=context_id)
    # One event loop for as long as the store is open, because its connections are bound to the loop.
    runner = asyncio.Runner()
    try:
        store = _run(runner, open_store(options.store, runs=options.runs, environ=options.environ, clock=options.clock))
    except BaseException:
        runner.close()
        raise
    return StateStore(context_id, store, runner=runner, options=options)


class StateStore:
    """The state, events, facts and messages of one conversation. Opened by `open_state_store`."""

    def __init__(self, context_id: str, store: Store, *, runner: asyncio.Runner, options: StateOptions) -> None:
        self.context_id = context_id
        self._store = store
        self._contexts = store.contexts
        self._runner = runner
        self._options = options
        self._redactor = options.redactor
        # A process may have several stores open, and one must not complete the claim of another.
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._keys: ResumeKeys | None = None
        self._finalizer = weakref.finalize(self, _close_unclosed, store, runner, os.getpid())

    def get_state(self) -> ContextState:
        """Return the state. A context that is not stored yet is pending and has version 0."""
        found = _run(self._runner, self._contexts.find_state(self.context_id))
        return found or ContextState(context_id=self.context_id)

    def put_state(self, state: ContextState, *, expected_version: int | None = None) -> ContextState:
        """Replace the state that was read. Raises `VersionConflictError` if it changed since.

        `expected_version` defaults to that of `state`, so unseen changes are never overwritten. A changed `summary` is
        stored too, unless newer events have been summarized since. Raises `UsageError` for an unknown task state.
        """
        if not isinstance(state, ContextState):  # pyright: ignore[reportUnnecessaryIsInstance]  callers may not check types
            raise UsageError(f"put_state takes the state of get_state(), changed with replace(), not {state!r}")
        return self.commit(ContextChange(state=state, expected_version=expected_version))

    def update_state(
        self, change: Callable[[ContextState], ContextState], *, patience_seconds: float = 60.0
    ) -> ContextState:
        """Read, change and put the state. If another writer was faster, retry with its state."""
        deadline = time.monotonic() + patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            state = self.get_state()
            try:
                return self.put_state(change(state), expected_version=state.version)
            except VersionConflictError:
                if time.monotonic() > deadline:
                    raise
            # A random pause, so that writers that collided don't collide again.
            time.sleep(random.uniform(0, pause))  # noqa: S311 (not security-relevant)
            pause = min(_MAX_PAUSE_SECONDS, pause * 2)

    def commit(self, change: ContextChange) -> ContextState:
        """Write state, events, facts and the result of a message in one transaction."""
        state = _run(self._runner, self._contexts.commit(self.context_id, redact_change(change, self._redactor)))
        return self._summarize_if_due(state) if change.events else state

    def append_event(
        self,
        event_type: str,
        payload: JsonValue,
        *,
        turn_number: int | None = None,
        agent_id: str = "",
        message_id: str = "",
    ) -> None:
        """Add an event to the conversation's log, which keeps the last 100. The turn defaults to the current one."""
        turn = self.get_state().current_turn if turn_number is None else turn_number
        event = NewEvent(
            event_type=event_type, payload=payload, turn_number=turn, agent_id=agent_id, message_id=message_id
        )
        self.commit(ContextChange(events=(event,)))

    def list_events(self, *, limit: int = MAX_EVENTS_PER_CONTEXT) -> list[ContextEvent]:
        """List the last events, oldest first."""
        return _run(self._runner, self._contexts.list_events(self.context_id, limit=limit))

    def put_fact(self, bucket: str, key: str, value: JsonValue, *, ttl_seconds: float | None = None) -> None:
        """Store a fact, optionally with an expiry. A bucket keeps 50 facts and drops the oldest."""
        fact = NewFact(bucket=bucket, key=key, value=value, ttl_seconds=ttl_seconds)
        self.commit(ContextChange(facts=(fact,)))

    def get_fact(self, bucket: str, key: str, default: JsonValue = None) -> JsonValue:
        fact = _run(self._runner, self._contexts.find_fact(self.context_id, bucket, key))
        return default if fact is None else fact.value

    def list_facts(self, bucket: str) -> dict[str, JsonValue]:
        return {
            fact.key: fact.value
            for fact in _run(self._runner, self._contexts.list_facts(self.context_id, bucket=bucket))
        }

    def delete_fact(self, bucket: str, key: str) -> None:
        self.commit(ContextChange(forgotten=((bucket, key),)))

    def record_message(self, message_id: str, *, lease_seconds: float = 60.0) -> Claim:
        """Claim a message. Raises `DuplicateMessageError`, with the stored result if it is done.

        If this process dies, another one can claim the message when the lease ends.
        """
        work = self._contexts.claim_message(self.context_id, message_id, owner=self._owner, seconds=lease_seconds)
        return _run(self._runner, work)

    def renew_message(self, claim: Claim, *, lease_seconds: float = 60.0) -> None:
        """Extend a claim. Raises `ClaimLost` if another worker took over the message."""
        _run(self._runner, self._contexts.renew_claim(claim, seconds=lease_seconds))

    def complete_message(self, claim: Claim, result: JsonValue, change: ContextChange | None = None) -> ContextState:
        """Store the result and other changes in one transaction. Raises `ClaimLost`."""
        return self.commit(replace(change or ContextChange(), completion=Completion(claim=claim, result=result)))

    def release_message(self, claim: Claim) -> None:
        """Release the message without a result."""
        _run(self._runner, self._contexts.release_claim(claim))

    def get_cached_result(self, message_id: str) -> JsonValue:
        """Return the stored result of a message, or None if there is none."""
        found = _run(self._runner, self._contexts.find_message(self.context_id, message_id))
        return found.result if found else None

    def answer_once(
        self,
        message_id: str,
        work: Callable[[], JsonValue],
        *,
        lease_seconds: float = 60.0,
        wait_seconds: float = 60.0,
    ) -> JsonValue:
        """Return the result of a message. Does its `work` only if there is no stored result.

        Waits while another worker has the claim. Raises `DuplicateMessageError` if that takes too long.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                claim = self.record_message(message_id, lease_seconds=lease_seconds)
            except DuplicateMessageError as duplicate:
                if duplicate.is_done:
                    return duplicate.result
                if time.monotonic() > deadline:
                    raise
                # Stores don't notify about messages, so another worker's result is polled for.
                time.sleep(_POLL_SECONDS)
                continue
            return self._answer(claim, work)

    def summarize(self) -> str:
        """Update the summary and return it."""
        return self._summarize(self.get_state()).summary

    def generate_resume_token(self, *, lifetime_seconds: float = LIFETIME_SECONDS, bound_to: str = "") -> str:
        """Return a token that can be redeemed once, to continue from the current state."""
        state = self.get_state()
        subject = TokenSubject(context_id=self.context_id, bound_to=bound_to)
        expires_at = self._options.clock.now() + timedelta(seconds=lifetime_seconds)
        return sign_token(
            subject, version=state.version, turn=state.current_turn, expires_at=expires_at, keys=self._load_keys()
        )

    def redeem_resume_token(self, token: str, *, message_id: str = "", bound_to: str = "") -> ContextState:
        """Consume a token and return the state to continue from. Raises `ResumeTokenRefused`.

        The same message can redeem it again after a crash, until a message is completed with a new state.
        """
        subject = TokenSubject(context_id=self.context_id, bound_to=bound_to)
        now = self._options.clock.now()
        redemption = check_token(token, subject, keys=self._load_keys(), now=now, message_id=message_id)
        redeemed = redemption and _run(self._runner, self._contexts.redeem(self.context_id, redemption))
        if redeemed is None:
            raise ResumeTokenRefused
        return redeemed

    def delete(self) -> None:
        """Delete the conversation."""
        _run(self._runner, self._contexts.delete_context(self.context_id))

    def close(self) -> None:
        _run(self._runner, self._store.close())
        self._runner.close()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, claim: Claim, work: Callable[[], JsonValue]) -> JsonValue:
        try:
            result = work()
        except BaseException:
            self.release_message(claim)
            raise
        self.complete_message(claim, result)
        return result

    def _load_keys(self) -> ResumeKeys:
        self._keys = self._keys or load_resume_keys(self._options.runs, self._options.environ)
        return self._keys

    def _summarize_if_due(self, state: ContextState) -> ContextState:
        events = _run(self._runner, self._contexts.list_events(self.context_id, after=state.summarized_to))
        return self._summarize(state) if len(events) >= SUMMARY_EVENT_THRESHOLD else state

    def _summarize(self, state: ContextState) -> ContextState:
        events = _run(self._runner, self._contexts.list_events(self.context_id, after=state.summarized_to))
        if not events:
            return state
        try:
            text = self._options.summarize(state.summary, events).strip()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a caller's function; the events are stored already
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            logger.warning("The summarizer failed (%s); the summary is an extract of the events", reason)
            text = ""
        text = self._redactor.redact(text or summarize_by_extraction(state.summary, events))
        summary = NewSummary(text=text[:MAX_SUMMARY_SIZE_CHARS], upto=events[-1].number)
        return _run(self._runner, self._contexts.commit(self.context_id, ContextChange(summary=summary)))


def generate_resume_token(context_id: str, version: int, turn: int, *, options: StateOptions) -> str:
    """Return a token for a known version and turn. `StateStore.generate_resume_token` reads them instead."""
    expires_at = options.clock.now() + timedelta(seconds=LIFETIME_SECONDS)
    keys = load_resume_keys(options.runs, options.environ)
    return sign_token(TokenSubject(context_id=context_id), version=version, turn=turn, expires_at=expires_at, keys=keys)


def validate_resume_token(token: str, store: StateStore) -> bool:
    """Consume a token and return True if it was valid. The state then has a new version."""
    try:
        store.redeem_resume_token(token)
    except ResumeTokenRefused:
        return False
    return True


def redact_sensitive(value: JsonValue) -> JsonValue:
    """Remove secrets from a JSON value: keys in known formats, and the values of names like `password`."""
    return _redact(value, build_redactor())


def is_redacted(value: JsonValue) -> bool:
    """Return True if a secret was removed from a stored value, at any depth."""
    match value:
        case str():
            return MARK in value
        case list():
            return any(map(is_redacted, value))
        case dict():
            return any(is_redacted(inner) for inner in value.values())
        case _:
            return False


def redact_change(change: ContextChange, redactor: Redactor) -> ContextChange:
    """Remove secrets from all untrusted text of a change."""
    return replace(
        change,
        state=change.state and _redact_state(change.state, redactor),
        events=tuple(replace(event, payload=_redact(event.payload, redactor)) for event in change.events),
        facts=tuple(replace(fact, value=_redact_fact(fact, redactor)) for fact in change.facts),
        summary=change.summary and replace(change.summary, text=redactor.redact(change.summary.text)),
        completion=change.completion and replace(change.completion, result=_redact(change.completion.result, redactor)),
    )


def _redact_state(state: ContextState, redactor: Redactor) -> ContextState:
    return replace(state, input_request=_redact(state.input_request, redactor), summary=redactor.redact(state.summary))


def _redact_fact(fact: NewFact, redactor: Redactor) -> JsonValue:
    # The fact is redacted together with its name, which may mark the value as a secret.
    hidden = _redact({fact.key: fact.value}, redactor)
    return next(iter(hidden.values())) if isinstance(hidden, dict) else hidden


def _redact(value: JsonValue, redactor: Redactor) -> JsonValue:
    # Two spellings of the same type: pydantic's and the redactor's.
    return cast(JsonValue, redactor.redact_value(cast(Json, value)))


def _close_unclosed(store: Store, runner: asyncio.Runner, process: int) -> None:
    """Close a store that its program didn't close: an open connection pool would write warnings to stderr."""
    if os.getpid() != process:
        # A forked child must not close the sessions of its parent.
        return
    if not _is_in_event_loop():
        _close_all(store, runner)
        return
    # An event loop can't run while another one runs in the same thread.
    thread = threading.Thread(target=_close_all, args=(store, runner))
    thread.start()
    thread.join()


def _close_all(store: Store, runner: asyncio.Runner) -> None:
    # Errors are ignored: closing some stores needs a thread, and none can be started at interpreter shutdown.
    with suppress(Exception), runner:
        runner.run(store.close())


def _run[T](runner: asyncio.Runner, work: Coroutine[None, None, T]) -> T:
    if _is_in_event_loop():
        work.close()
        raise UsageError(
            "The state of a conversation was used by code that runs in an event loop",
            hint="Call it from a worker thread, or use the `contexts` of a store with `await`",
        )
    return runner.run(work)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
