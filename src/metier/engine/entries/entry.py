"""The journal: one typed entry per thing that happened, exact enough to fold a run's state from. Pure values.

An entry is never changed once written. A field may be added with a default; a kind may be added; nothing else.
"""

from typing import Annotated

from pydantic import Field, TypeAdapter

from metier.engine.entries.limits import LimitsRaised
from metier.engine.entries.model import DecisionMade, DecodeFailed, ModelCallStarted, ModelReplied, ProgressVerified
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven
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
from metier.messages import WHEN_USED

type Entry = Annotated[
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
    | RunFailed,
    Field(discriminator="kind"),
]


_ADAPTER: TypeAdapter[Entry] = TypeAdapter(Entry, config=WHEN_USED)


def parse_entry(data: bytes) -> Entry:
    """Raises pydantic's `ValidationError` on bytes that no version of Metier wrote."""
    return _ADAPTER.validator.validate_json(data)


def render_entry(entry: Entry) -> bytes:
    return entry.__pydantic_serializer__.to_json(entry)
