"""A recorded journal during a replay, and its comparison with the replayed entries."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted
from metier.engine.entries.run import RunFailed, RunPaused
from metier.values import dump_fields

IGNORED = frozenset(
    {
        "duration_ms",
        "latency_ms",
        "recorded_at",
        "driver",
        "expires_at",
        "cost_usd",
        "preview",
        "base",
        "leads_to",
        "verdict",
        "rule",
        "spool",
        "before",
        "risk",
        "server_address",
        "server_port",
    }
)
"""Fields that a replay ignores: times, prices, driver, machine, server, file states and verdicts."""

_GIVEN = (
    "run_started",
    "run_adopted",
    "run_resumed",
    "approval_decided",
    "input_given",
    "user_message_added",
    "doubt_resolved",
    "child_ended",
    "limits_raised",
    "run_reopened",
    "skill_code_accepted",
    "model_changed",
    "undo_started",
    "undo_finished",
)
_GIVEN_PAUSES = ("signal", "explicit", "storage", "delegation", "changed_code")
_GIVEN_STATUS = ("canceled", "timeout")
# These failures depend on keys and files of the host, which a replay does not use.
_GIVEN_REASONS = ("missing_provider_api_key", "protected_changed", "records_moved")


class Difference(Struct, frozen=True):
    """One difference between two entries."""

    path: str
    recorded: JsonValue
    replayed: JsonValue


class Divergence(Struct, frozen=True, kw_only=True):
    """The first entry that would be written differently."""

    number: int
    sentence: str
    recorded: Entry | None
    """None at the end of the record."""
    replayed: Entry | None
    """None if the run would do nothing."""
    differences: tuple[Difference, ...] = ()


class Diverged(Exception):
    """Ends a replay that differs from the record."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.sentence)
        self.divergence = divergence


class Recording:
    """The entries of a run, read once from the first to the last."""

    def __init__(self, entries: Sequence[Entry], *, rederive: bool = False) -> None:
        self.entries = list(entries)
        self.position = 0
        self._rederive = rederive

    @property
    def is_over(self) -> bool:
        return self.position >= len(self.entries)

    def peek(self) -> Entry | None:
        return None if self.is_over else self.entries[self.position]

    def take(self, replayed: Entry) -> None:
        """Compare with the entry recorded at this place. Raises `Diverged`.

        With `rederive`, an entry of the same kind replaces the recorded one.
        """
        recorded = self.peek()
        differences = () if recorded is None else compare(recorded, replayed)
        if self._rederive and recorded is not None and recorded.kind == replayed.kind:
            self.entries[self.position] = _keep_ignored(recorded, replayed) if differences else recorded
        elif differences or recorded is None:
            raise Diverged(self.diverge(replayed, differences))
        self.position += 1

    def diverge(self, replayed: Entry | None, differences: tuple[Difference, ...] = ()) -> Divergence:
        recorded = self.peek()
        return Divergence(
            number=self.position + 1,
            sentence=describe(recorded, replayed, differences),
            recorded=recorded,
            replayed=replayed,
            differences=differences,
        )


def is_given(entry: Entry | None) -> bool:
    """Return True for entries from outside of the run: from a user, a signal or the starting process."""
    match entry:
        case None:
            return False
        case RunPaused():
            # A replay takes less time, so it would never reach the time limit.
            return entry.pause in _GIVEN_PAUSES or entry.limit == "timeout_seconds"
        case RunFailed():
            # An abort is an answer within the run; a cancellation comes from outside.
            is_decision = entry.reason == "aborted"
            return (entry.status in _GIVEN_STATUS and not is_decision) or entry.reason in _GIVEN_REASONS
        case _:
            return entry.kind in _GIVEN


def compare(recorded: Entry, replayed: Entry) -> tuple[Difference, ...]:
    """Return the relevant differences as paths like `decision.planned_actions[0].params.path`."""
    return tuple(list_differences(_dump(recorded, IGNORED), _dump(replayed, IGNORED)))


def list_differences(recorded: JsonValue, replayed: JsonValue, path: str = "") -> Iterator[Difference]:
    """Yield the differences of two JSON values, depth first."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for key in dict.fromkeys((*recorded, *replayed)):
            place = f"{path}.{key}" if path else key
            yield from list_differences(recorded.get(key), replayed.get(key), place)
    elif isinstance(recorded, list) and isinstance(replayed, list):
        for index in range(max(len(recorded), len(replayed))):
            left = recorded[index] if index < len(recorded) else None
            right = replayed[index] if index < len(replayed) else None
            yield from list_differences(left, right, f"{path}[{index}]")
    # In Python, `1 == True` and `1 == 1.0`, but not in JSON.
    elif recorded != replayed or type(recorded) is not type(replayed):
        yield Difference(path, recorded, replayed)


def _keep_ignored(recorded: Entry, replayed: Entry) -> Entry:
    fields = IGNORED & set(recorded.__struct_fields__)
    return replace(replayed, **{name: getattr(recorded, name) for name in fields})


def _dump(entry: Entry, without: frozenset[str]) -> JsonValue:
    return {name: value for name, value in dump_fields(entry).items() if name not in without}


_SENTENCES = {
    "catalog_loaded": "The catalog holds other skills than it did",
    "skills_ranked": "The skills are ranked differently for this task",
    "decision_made": "The recorded reply is understood differently",
    "decode_failed": "The recorded reply is understood differently",
    "step_started": "Another call would be made, or with another effect class",
    "step_finished": "The step would end differently without running",
    "hooks_ran": "Other hooks would run at this moment",
    "approval_asked": "Another approval would be asked for",
    "progress_verified": "The run would go on elsewhere after this turn",
    "handed_off": "The run would be handed to another skill",
    "run_finished": "The run would end with another result",
    "run_failed": "The run would fail for another reason",
}


def describe(recorded: Entry | None, replayed: Entry | None, differences: tuple[Difference, ...]) -> str:
    """Describe the difference in one sentence."""
    if recorded is None:
        return f"The record is at its end, and the run would go on with {_word(replayed)}"
    if replayed is None:
        return f"The record goes on with {_word(recorded)}, and the run would do nothing"
    if recorded.kind != replayed.kind:
        return f"The record goes on with {_word(recorded)}, and the run would go on with {_word(replayed)}"
    if isinstance(recorded, ModelCallStarted) and isinstance(replayed, ModelCallStarted):
        return _describe_request(recorded, replayed, differences)
    return _SENTENCES.get(recorded.kind, f"The entry {recorded.kind!r} would be written differently")


def _describe_request(
    recorded: ModelCallStarted, replayed: ModelCallStarted, differences: tuple[Difference, ...]
) -> str:
    start = f"The request of turn {recorded.turn} is not the one that was sent"
    names = {difference.path for difference in differences}
    if "request_hash" not in names:
        return f"{start}: its words are the same, {', '.join(sorted(names))} is not"
    if recorded.prefix_hash != replayed.prefix_hash:
        return f"{start}: instructions, skill descriptions or the way they are put together changed"
    return f"{start}: the task, the tools, what was disclosed or what the steps gave changed"


def _word(entry: Entry | None) -> str:
    return entry.kind.replace("_", " ") if entry is not None else "nothing"
