"""Many processes on one conversation, forked from a fully loaded one so that they run concurrently."""

import contextlib
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from metier.errors import MetierError
from metier.store.backend import StoreOptions
from metier.store.state_store import StateOptions, StateStore, open_state_store
from metier.telemetry.redaction import build_redactor

BEGIN = "begin"


def count_up(store: StateStore, times: int, _number: int) -> list[object]:
    for _ in range(times):
        store.update_state(lambda state: replace(state, current_turn=state.current_turn + 1), patience_seconds=300)
    return []


def bring_messages(store: StateStore, times: int, number: int) -> list[object]:
    """Deliver every message repeatedly in random order. Each processed message leaves a line."""
    messages = [f"m{place % 100:02}" for place in range(times)]
    random.Random(number).shuffle(messages)
    wrong: list[object] = []
    for message in messages:
        answer = store.answer_once(message, lambda message=message: work(message, number), wait_seconds=300)
        if not isinstance(answer, dict) or answer.get("message") != message:
            wrong.append([message, answer])
    return wrong


def work(message: str, number: int) -> JsonValue:
    descriptor = os.open(WORK, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{message}\n".encode())
    os.close(descriptor)
    return {"message": message, "by": number}


def build_options(folder: Path, environ: Mapping[str, str]) -> StateOptions:
    store = StoreOptions(backend="postgres" if environ["STATE_STORE_BACKEND"] == "postgres" else "sqlite")
    return StateOptions(redactor=build_redactor(), runs=folder / "runs", store=store, environ=dict(environ))


def run_child(number: int, do: Callable[[StateStore, int, int], list[object]], times: int) -> int:
    try:
        with open_state_store("ctx", OPTIONS) as store:
            wrong = do(store, times, number)
    except MetierError:
        traceback.print_exc()
        return 1
    for one in wrong:
        print(json.dumps(one), flush=True)
    return 2 if wrong else 0


if __name__ == "__main__":
    what, folder, processes, times = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    WORK = folder / "work"
    OPTIONS = build_options(folder, os.environ)
    with open_state_store("ctx", OPTIONS) as first:
        first.put_fact("b", "opened", 1)
    begin_read, begin_write = os.pipe()
    children: list[int] = []
    for child_number in range(processes):
        child = os.fork()
        if child == 0:
            os.close(begin_write)
            os.read(begin_read, 1)  # until everybody is there
            code = 1
            with contextlib.suppress(BaseException):
                code = run_child(child_number, {"count": count_up, "messages": bring_messages}[what], times)
            os._exit(code)
        children.append(child)
    os.close(begin_write)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps({"codes": sorted(set(codes))}), flush=True)
