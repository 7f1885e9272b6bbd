"""The interview for a decision record: it keeps earlier answers and asks for missing ones."""

import os
from pathlib import Path

import pytest
from pydantic import JsonValue

from metier import create_agent_adapter, create_executor

pytestmark = pytest.mark.slow


def test_interview_keeps_earlier_answers_and_ends_in_a_numbered_record(tmp_path: Path) -> None:
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    (tmp_path / "docs" / "adr" / "0007-use-git.md").touch()

    def talk(resume: bool = True, **inputs: str) -> str:
        # A new adapter each time: nothing is kept in memory.
        adapter = create_agent_adapter(create_executor(tmp_path, home=tmp_path, environ=dict(os.environ)))
        response = adapter.invoke("decision-record", dict(inputs), "ctx", resume=resume)
        if response.state == "completed":
            assert Path(response.artifacts[0]).read_text(encoding="utf-8") == response.outputs["document"]
            return f"{response.outputs['path']}\n{response.outputs['document']}"
        assert response.state == "input_required"
        assert response.input_request is not None
        return " ".join(field.name for field in response.input_request.missing_fields)

    assert talk(resume=False, task="Write a decision record about the job queue") == (
        "context options decision consequences"
    )
    assert talk(context="Jobs get lost", options="Redis; RabbitMQ\n- Files") == "decision consequences"
    assert talk(decision="Kafka", consequences="One more server") == "decision"
    assert talk(decision="Redis", date="2025-01-31") == "reasons"
    assert talk(reasons="RabbitMQ: nobody knows it; Files: slow") == (
        "docs/adr/0008-the-job-queue.md\n"
        "# 8. the job queue\n\nDate: 2025-01-31\nStatus: accepted\n\n## Context\n\nJobs get lost\n\n## Options\n\n"
        "- Redis (chosen)\n- RabbitMQ: not chosen, because nobody knows it\n- Files: not chosen, because slow\n\n"
        "## Decision\n\nRedis.\n\n## Consequences\n\n- One more server\n"
    )


def test_complete_input_is_asked_only_for_reasons_which_may_be_declined(tmp_path: Path) -> None:
    adapter = create_agent_adapter(create_executor(tmp_path, home=tmp_path, environ=dict(os.environ)))
    told: dict[str, JsonValue] = {
        "title": "Queue",
        "context": "Jobs get lost",
        "options": ["Redis", "Files"],
        "decision": "Redis",
        "consequences": ["One more server"],
    }

    asked = adapter.invoke("decision-record", {**told}, "ctx")
    done = adapter.invoke("decision-record", {}, "ctx", resume=True)

    assert "why the others were not chosen" in asked.message
    assert done.outputs["path"] == "docs/decisions/0001-queue.md"
