"""A synchronous run, without an event loop and inside a running one."""

import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

import metier
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says


class City(BaseModel):
    name: str


def test_a_script_without_an_event_loop_gets_a_typed_result(folder: Path) -> None:
    result = metier.run_sync("Where?", output_schema=City, provider=ScriptedProvider(says('{"name": "Oslo"}')))

    assert result.value == City(name="Oslo")
    assert (folder / "runs" / result.run_id).is_dir()


@pytest.mark.anyio
async def test_a_notebook_with_a_running_event_loop_gets_a_typed_result(folder: Path) -> None:
    threads: list[threading.Thread] = []

    def note() -> str:
        """Note where it is called."""
        threads.append(threading.current_thread())
        return "noted"

    result = metier.run_sync("Note", provider=ScriptedProvider(calls(ToolCall("note")), says("Noted.")), tools=[note])
    again = metier.run_sync("Again", path=str(folder), provider=ScriptedProvider(says("Again.")))

    assert (result.text, again.text) == ("Noted.", "Again.")
    assert threading.current_thread() not in threads
    await anyio.lowlevel.checkpoint()  # the loop of the caller still works


@pytest.mark.anyio
async def test_an_exception_from_the_other_thread_is_raised_unchanged(folder: Path) -> None:
    with pytest.raises(metier.ConfigError, match="settings"):
        metier.run_sync("?", settings={"runtime.max_turn": 1})


INTERRUPTED = """
import asyncio, os, signal, sys, threading, metier
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it

def interrupt() -> str:
    \"\"\"Press Ctrl-C.\"\"\"
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(3600)
    return "not stopped"

def script():
    provider = ScriptedProvider(calls(ToolCall("interrupt")), says("Over."))
    metier.run_sync("Go", provider=provider, tools=[metier.tool(effect="read")(interrupt)])

async def notebook():
    script()

try:
    asyncio.run(notebook()) if sys.argv[1] == "notebook" else script()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    done = metier.run_sync("x", provider=ScriptedProvider(says("Next.")))
    print(done.text, flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("where", ["script", "notebook"])
def test_ctrl_c_interrupts_the_run_and_the_program_continues(folder: Path, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, where], cwd=folder, capture_output=True, text=True, timeout=100
    )

    assert done.stdout.split() == ["interrupted", "Next."], done.stderr
