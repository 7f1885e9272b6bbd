"""A Celery message with a resume token whose worker is killed after it redeemed the token: RabbitMQ redelivers it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from capability_skills import write_skill
from test_adapter import ASKS, open_adapter
from test_redelivered_messages import WAITER

from services.rabbitmq_server import find_rabbitmq, run_rabbitmq

pytestmark = [
    pytest.mark.skipif(find_rabbitmq() is None, reason="rabbitmq-server is not installed here"),
]

APPLICATION = """
import json, os
from celery import Celery
from metier import create_agent_adapter, create_executor

app = Celery("work", broker=os.environ["TEST_BROKER_URL"])
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, task_default_queue=os.environ["TEST_QUEUE"])


@app.task(bind=True, name="turn")
def turn(self, inputs, token):
    adapter = create_agent_adapter(create_executor("."))
    try:
        response = adapter.invoke("waiter", inputs, "ctx", resume_token=token, message_id=self.request.id)
        told = {"state": response.state, "outputs": response.outputs, "id": self.request.id}
    except Exception as error:
        told = {"state": repr(error)}
    with open("answer", "w") as answer:
        answer.write(json.dumps(told | {"redelivered": self.request.delivery_info["redelivered"]}))
"""
SEND = "import sys, tasks; print(tasks.turn.delay({'name': 'a'}, sys.argv[1]).id)"
WORKER = ("-m", "celery", "-A", "tasks", "worker", "--pool=solo", "--without-gossip", "--without-mingle")


def start_worker(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "worker.log").open("ab") as log:
        return subprocess.Popen([sys.executable, *WORKER], cwd=folder, env=environment, stdout=log, stderr=log)


def test_message_that_celery_redelivers_after_a_kill_is_accepted_with_its_redeemed_token(workspace: Path) -> None:
    write_skill(workspace / "skills", "waiter", contract=ASKS, impl=WAITER)
    (workspace / "tasks.py").write_text(APPLICATION, encoding="utf-8")
    token = open_adapter(workspace).invoke("waiter", {"count": 1}, "ctx", message_id="m1").metadata.resume_token
    gate, answer = workspace / "gate", workspace / "answer"
    os.mkfifo(gate)
    os.mkfifo(answer)
    with run_rabbitmq() as server:
        environment = {**os.environ, "TEST_BROKER_URL": server.url, "TEST_QUEUE": f"q{uuid4().hex}"}
        sent = subprocess.run(
            [sys.executable, "-c", SEND, token],
            cwd=workspace,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        with start_worker(workspace, environment) as first, gate.open("w"):  # opens when the skill reads
            first.send_signal(signal.SIGKILL)
            first.wait()
        gate.unlink()
        gate.write_text("!", encoding="utf-8")
        with start_worker(workspace, environment) as second:
            told = json.loads(answer.read_text(encoding="utf-8"))
            second.send_signal(signal.SIGTERM)

    assert told == {
        "state": "completed",
        "outputs": {"text": "a!", "turn": 2},
        "id": sent.stdout.strip(),
        "redelivered": True,
    }
