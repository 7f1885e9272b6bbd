"""Journal entries: one typed entry per fact, exact enough to fold a run's state from. Pure values.

An entry is never changed once written. A field may be added with a default; a kind may be added; nothing else.
"""

from msgspec import DecodeError
from msgspec.json import Decoder, Encoder

from metier.engine.entries.limits import LimitsRaised
from metier.engine.entries.model import DecisionMade, DecodeFailed, ModelCallStarted, ModelReplied, ProgressVerified
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven, UserMessageAdded
from metier.engine.entries.run import (
    ModelChanged,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
    SkillCodeAccepted,
)
from metier.engine.entries.skill import CatalogLoaded, ContextDisclosed, HandedOff, SkillsRanked
from metier.engine.entries.step import (
    DoubtResolved,
    FailureTold,
    HooksRan,
    StepFinished,
    StepInDoubt,
    StepRetried,
    StepStarted,
    UndoFinished,
    UndoStarted,
)
from metier.engine.entries.task import CallPlanned, ChildEnded, ChildRequested, ResultChecked, TaskPlanned
from metier.values import decode_model, encode_model

type Entry = (
    RunStarted
    | RunAdopted
    | CatalogLoaded
    | SkillsRanked
    | ContextDisclosed
    | ModelCallStarted
    | ModelReplied
    | DecisionMade
    | DecodeFailed
    | StepStarted
    | StepFinished
    | StepRetried
    | FailureTold
    | StepInDoubt
    | DoubtResolved
    | TaskPlanned
    | CallPlanned
    | ChildRequested
    | ChildEnded
    | ResultChecked
    | ApprovalAsked
    | ApprovalDecided
    | InputAsked
    | InputGiven
    | UserMessageAdded
    | ProgressVerified
    | HandedOff
    | RunPaused
    | RunResumed
    | LimitsRaised
    | UndoStarted
    | UndoFinished
    | HooksRan
    | SkillCodeAccepted
    | ModelChanged
    | RunReopened
    | RunFinished
    | RunFailed
)

# A driver that continues the run arrives at these again: from files, the model or earlier entries. The result of a step
# with an effect is one of them, because its intent is flushed: without the result, the step has an unknown outcome, and
# the user is asked. An attempt that is lost must not count against the run, hence `RunResumed`.
_REPEATABLE = (
    RunResumed
    | CatalogLoaded
    | SkillsRanked
    | ContextDisclosed
    | HandedOff
    | ModelCallStarted
    | ModelReplied
    | DecisionMade
    | DecodeFailed
    | ProgressVerified
    | StepFinished
    | StepRetried
    | FailureTold
    | TaskPlanned
    | CallPlanned
    | ResultChecked
)


def needs_flush(entry: Entry) -> bool:
    """Return False for an entry that may be lost if the machine crashes, because the run would repeat it."""
    if isinstance(entry, StepStarted):
        # Other effects must not start before the journal shows that they may have happened.
        return entry.effect != "read"
    return not isinstance(entry, _REPEATABLE)


# The hooks are for values that pydantic defines, such as the options in `ModelChanged`.
_DECODER: Decoder[Entry] = Decoder(Entry, dec_hook=decode_model)
_ENCODER = Encoder(enc_hook=encode_model)


def parse_entry(data: bytes) -> Entry:
    """Raises `ValueError` for bytes that no version of Metier wrote."""
    try:
        return _DECODER.decode(data)
    except (DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def render_entry(entry: Entry) -> bytes:
    return _ENCODER.encode(entry)
