"""States, their two mappings, and input forms."""

import pytest

from metier.capabilities.protocol import (
    RESUMABLE,
    TERMINAL,
    ExecutionStatus,
    InputRequest,
    MissingField,
    TaskState,
    execution_status_to_task_state,
    task_state_to_execution_status_value,
)
from metier.decisions import TASK_STATES
from metier.errors import UsageError


def test_states_use_the_vocabulary_of_runs() -> None:
    assert {state.value for state in TaskState} == set(TASK_STATES)


def test_a_state_is_terminal_resumable_or_in_progress() -> None:
    assert not TERMINAL & RESUMABLE
    assert set(TaskState) - TERMINAL - RESUMABLE == {TaskState.PENDING, TaskState.IN_PROGRESS}


@pytest.mark.parametrize("status", list(ExecutionStatus))
def test_every_status_survives_a_round_trip(status: ExecutionStatus) -> None:
    assert task_state_to_execution_status_value(execution_status_to_task_state(status)) == status


@pytest.mark.parametrize("state", sorted(set(TaskState) - TERMINAL))
def test_unfinished_states_are_blocked_in_the_older_vocabulary(state: TaskState) -> None:
    assert task_state_to_execution_status_value(state) == "blocked"


def test_an_unknown_status_is_rejected() -> None:
    with pytest.raises(UsageError, match="'completed'"):
        execution_status_to_task_state("completed")


def test_an_input_request_has_a_form_and_a_message() -> None:
    request = InputRequest(
        message="Which one",
        missing_fields=(
            MissingField(name="kind", description="A or B", enum=("A", "B")),
            MissingField(name="depth", type="integer", required=False),
        ),
        errors=("'C' is not one of ['A', 'B'] (at $.kind)",),
    )

    assert request.build_form() == {
        "type": "object",
        "properties": {
            "kind": {"type": "string", "description": "A or B", "enum": ["A", "B"]},
            "depth": {"type": "integer"},
        },
        "required": ["kind"],
    }
    assert request.render() == "Which one: kind (A or B); depth ('C' is not one of ['A', 'B'] (at $.kind))"
