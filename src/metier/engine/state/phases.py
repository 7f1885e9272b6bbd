"""The phases of a run and their transitions, as a table. A transition that is not in it is a bug. Pure."""

from typing import Literal

type Phase = Literal[
    "INIT",
    "LOAD_SKILL_CATALOG",
    "PREFILTER_SKILLS",
    "DISCLOSE_CONTEXT_STAGE",
    "CALL_LLM",
    "DECODE_DECISION",
    "EXECUTE_STEP",
    "VERIFY_PROGRESS",
    "HANDOFF_OR_FINISH",
    "DONE",
    "ERROR",
]

TRANSITIONS: dict[tuple[Phase, Phase], str] = {
    ("INIT", "LOAD_SKILL_CATALOG"): "Run starts",
    ("LOAD_SKILL_CATALOG", "PREFILTER_SKILLS"): "Skill catalog load succeeds",
    ("LOAD_SKILL_CATALOG", "EXECUTE_STEP"): "A task definition has planned the steps",
    ("PREFILTER_SKILLS", "DISCLOSE_CONTEXT_STAGE"): "Candidates found, or none and the strategy falls back to all",
    ("DISCLOSE_CONTEXT_STAGE", "CALL_LLM"): "Disclosure selected and budgeted",
    ("CALL_LLM", "CALL_LLM"): "Transient provider error and retry budget remains",
    ("CALL_LLM", "DECODE_DECISION"): "Response received",
    ("DECODE_DECISION", "CALL_LLM"): "Decode fails and one repair remains",
    ("DECODE_DECISION", "EXECUTE_STEP"): "Action step returned",
    ("DECODE_DECISION", "HANDOFF_OR_FINISH"): "Finish or hand-off decision returned",
    ("EXECUTE_STEP", "EXECUTE_STEP"): "Next step, or a failed one that may be tried once more",
    ("EXECUTE_STEP", "VERIFY_PROGRESS"): "Step execution succeeds",
    ("EXECUTE_STEP", "HANDOFF_OR_FINISH"): "Step failure and fallback skill selected",
    ("VERIFY_PROGRESS", "DISCLOSE_CONTEXT_STAGE"): "More context needed",
    ("VERIFY_PROGRESS", "CALL_LLM"): "Continue reasoning with what the steps gave",
    ("VERIFY_PROGRESS", "HANDOFF_OR_FINISH"): "Objective met or blocked",
    ("HANDOFF_OR_FINISH", "DISCLOSE_CONTEXT_STAGE"): "Hand-off to the next skill",
    ("HANDOFF_OR_FINISH", "CALL_LLM"): "The result is not what was asked for and one repair remains",
    ("HANDOFF_OR_FINISH", "DONE"): "Final completion reached",
}
"""From, to, and condition. Every phase but the last two may also go to ERROR."""

FINAL: frozenset[Phase] = frozenset({"DONE", "ERROR"})


class IllegalTransition(AssertionError):
    """The journal has an impossible transition: a bug in Metier, or a modified journal."""


def check_transition(current: Phase, following: Phase) -> None:
    """Raise `IllegalTransition` for an impossible transition."""
    allowed = (current, following) in TRANSITIONS or (following == "ERROR" and current not in FINAL)
    if not allowed:
        raise IllegalTransition(f"A run cannot go from {current} to {following}")
