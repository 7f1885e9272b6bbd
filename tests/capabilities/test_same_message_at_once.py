"""A message that is delivered again while the first delivery is processed."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from capability_skills import write_skill
from pydantic import JsonValue
from test_adapter import ASKS, open_adapter

from metier.store.failures import DuplicateMessageError

WAITER = """
def execute(context):
    if "name" not in context.inputs:
        return {"state": "input_required", "input_request": {"message": "Who?", "missing_fields": [{"name": "name"}]}}
    with open(context.inputs["name"]) as gate:
        return {"outputs": {"text": gate.read()}}
"""


def test_a_concurrent_second_message_with_the_same_resume_token_is_a_duplicate(workspace: Path) -> None:
    write_skill(workspace / "skills", "waiter", contract=ASKS, impl=WAITER)
    gate = workspace / "gate"
    os.mkfifo(gate)
    token = open_adapter(workspace).invoke("waiter", {"count": 1}, "ctx", message_id="m1").metadata.resume_token

    def answer() -> object:
        inputs: dict[str, JsonValue] = {"name": str(gate)}
        return open_adapter(workspace).invoke("waiter", inputs, "ctx", resume_token=token, message_id="m2").outputs

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(answer)
        with gate.open("w") as opened:  # returns once the skill reads: the first delivery is being worked on
            with pytest.raises(DuplicateMessageError):
                answer()
            opened.write("done")
        assert first.result(timeout=60) == {"text": "done"}
    assert answer() == {"text": "done"}
