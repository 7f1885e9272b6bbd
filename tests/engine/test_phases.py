"""The phase table: listed transitions are allowed, others raise."""

import itertools
from typing import get_args

import pytest

from metier.engine.state.phases import FINAL, TRANSITIONS, IllegalTransition, Phase, check_transition

PHASES: tuple[Phase, ...] = get_args(Phase.__value__)

ALLOWED = {
    ("INIT", "LOAD_SKILL_CATALOG"),
    ("LOAD_SKILL_CATALOG", "PREFILTER_SKILLS"),
    ("LOAD_SKILL_CATALOG", "EXECUTE_STEP"),
    ("PREFILTER_SKILLS", "DISCLOSE_CONTEXT_STAGE"),
    ("DISCLOSE_CONTEXT_STAGE", "CALL_LLM"),
    ("CALL_LLM", "CALL_LLM"),
    ("CALL_LLM", "DECODE_DECISION"),
    ("DECODE_DECISION", "CALL_LLM"),
    ("DECODE_DECISION", "EXECUTE_STEP"),
    ("DECODE_DECISION", "HANDOFF_OR_FINISH"),
    ("EXECUTE_STEP", "EXECUTE_STEP"),
    ("EXECUTE_STEP", "VERIFY_PROGRESS"),
    ("EXECUTE_STEP", "HANDOFF_OR_FINISH"),
    ("VERIFY_PROGRESS", "DISCLOSE_CONTEXT_STAGE"),
    ("VERIFY_PROGRESS", "CALL_LLM"),
    ("VERIFY_PROGRESS", "HANDOFF_OR_FINISH"),
    ("HANDOFF_OR_FINISH", "DISCLOSE_CONTEXT_STAGE"),
    ("HANDOFF_OR_FINISH", "CALL_LLM"),
    ("HANDOFF_OR_FINISH", "DONE"),
}
"""The design's table, written a second time on purpose."""


def test_transition_table_matches_the_design_and_states_conditions() -> None:
    assert set(TRANSITIONS) == ALLOWED
    assert all(TRANSITIONS.values())


@pytest.mark.parametrize(("current", "following"), list(itertools.product(PHASES, PHASES)))
def test_every_pair_of_phases_is_allowed_or_raises(current: Phase, following: Phase) -> None:
    if (current, following) in ALLOWED or (following == "ERROR" and current not in FINAL):
        check_transition(current, following)
        return

    with pytest.raises(IllegalTransition, match=f"from {current} to {following}"):
        check_transition(current, following)


def test_no_phase_follows_the_end() -> None:
    assert {"DONE", "ERROR"} == FINAL
    assert not [pair for pair in TRANSITIONS if pair[0] in FINAL]
