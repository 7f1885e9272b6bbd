"""Actions at a terminal and the expected screens, which are also the pictures of the docs."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from model_server import ModelServer, Reply, calls, fails, says
from tmux import Terminal, open_terminal

from agent_command import AGENT, run_agent

ANSWER = """# What I found

The folder has **two** notes; see [the guide](https://docs.example/notes).

- `a.md` is short
- `b.md` is *shorter*

| file | lines |
|------|-------|
| a.md | 2 |
| b.md | 1 |

```python
print("done")
```
"""
LOOK = Reply(
    text="I look around first.",
    calls=(("Bash", {"command": "printf 'line %d\\n' 1 2 3 4 5 6 7 8 9"}), ("Read", {"path": "a.md"})),
)
CLOSED = r"run \d{8}-"


class Screens(NamedTuple):
    plain: str
    styled: str


class Place(NamedTuple):
    folder: Path
    model: ModelServer
    environment: Mapping[str, str]
    size: tuple[int, int]

    def open(self, *args: str) -> AbstractContextManager[Terminal]:
        words = [str(AGENT), *args]
        return open_terminal(words, folder=self.folder, environment=self.environment, size=self.size)


def _take(terminal: Terminal) -> Screens:
    return Screens(hide_times(terminal.capture()), terminal.capture(styled=True))


def show_run(place: Place) -> Screens:
    place.model.follow(
        LOOK,
        calls("Edit", path="a.md", old="one", new="eins"),
        calls("Bash", command="echo no such ledger >&2; exit 3"),
        says(ANSWER),
    )
    with place.open("run", "Look at the notes") as terminal:
        terminal.wait_for(CLOSED)
        return _take(terminal)


def show_failure(place: Place) -> Screens:
    place.model.follow(LOOK, fails(401))
    with place.open("run", "Look at the notes") as terminal:
        terminal.wait_for("Check|key|next:|error:")
        terminal.wait_for(CLOSED)
        return _take(terminal)


def show_interrupted_reply(place: Place) -> Screens:
    place.model.follow(says("Once upon a time there was a folder, and it was full of notes. "))
    place.model.halting.set()
    with place.open("run", "Tell me a story") as terminal:
        terminal.wait_for("full of notes")
        terminal.type("C-c")
        terminal.wait_for("resume")
        place.model.halting.clear()
        place.model.released.set()
        return _take(terminal)


def show_resumed_run(place: Place) -> Screens:
    place.model.follow(LOOK, calls("ask_user", question="Which colour?"), says("It is **blue**."))
    run_agent("run", "Ask me", "-q", cwd=place.folder, env=place.environment)
    with place.open("resume", "latest", "--input", "answer=blue") as terminal:
        terminal.wait_for(CLOSED)
        return _take(terminal)


def show_chat(place: Place) -> Screens:
    """Show a chat with tools: a diff, output, an answer, and text typed meanwhile."""
    place.model.follow(
        calls("Edit", path="a.md", old="one", new="eins"),
        calls("Bash", command="printf 'line %d\\n' 1 2 3 4 5 6 7 8 9"),
        says("I changed **one** line.\n\n- `a.md` says `eins` now\n"),
    )
    with place.open("chat", "--profile", "permissive") as terminal:
        terminal.wait_for("you>")
        terminal.type("Translate the note", "Enter")
        terminal.wait_for("says eins now")
        terminal.wait_for("cost unknown")
        terminal.type("-l", "and now @b")
        terminal.wait_for("@b.md")
        return _take(terminal)


def show_approval(place: Place) -> Screens:
    place.model.follow(
        Reply(
            text="I fix both notes.",
            calls=(
                ("Edit", {"path": "a.md", "old": "one", "new": "eins\nund"}),
                ("Bash", {"command": "touch done.txt"}),
            ),
        ),
        says("Done."),
    )
    with place.open("run", "Fix the notes", "--profile", "guarded") as terminal:
        terminal.wait_for(r"\[\?\]: *$")
        return _take(terminal)


def show_interrupted_chat(place: Place) -> Screens:
    place.model.follow(says("Once upon a time there was a folder, and it was full of notes. "))
    place.model.halting.set()
    with place.open("chat") as terminal:
        terminal.wait_for("you>")
        terminal.type("Tell me a story", "Enter")
        terminal.wait_for("full of notes")
        terminal.type("-l", "make it short")
        terminal.type("C-c")
        terminal.wait_for("Stopped by you")
        terminal.wait_for("cost unknown")
        place.model.halting.clear()
        place.model.released.set()
        return _take(terminal)


SCENES: dict[str, Callable[[Place], Screens]] = {
    "run": show_run,
    "failure": show_failure,
    "interrupted": show_interrupted_reply,
    "resumed": show_resumed_run,
    "chat": show_chat,
    "approval": show_approval,
    "chat-interrupted": show_interrupted_chat,
}
SIZES = {"100x30": (100, 30), "80x24": (80, 24)}


def prepare(folder: Path, url: str) -> None:
    """Create a workspace with two notes that uses the given model server."""
    (folder / "a.md").write_text("one\ntwo\n", encoding="utf-8")
    (folder / "b.md").write_text("three\n", encoding="utf-8")
    model = {"provider": "openai", "name": "model-1", "providers": {"openai": {"base_url": url}}}
    runtime = {"retry_base_delay_seconds": 0, "retry_max_delay_seconds": 0}
    (folder / "agent.yaml").write_text(json.dumps({"model": model, "runtime": runtime}), encoding="utf-8")


def hide_times(screen: str) -> str:
    """Replace times that differ between runs."""
    screen = re.sub(r"\d{8}-\d{6}(?:-[0-9a-f]{12})?", "RUN", screen)
    screen = re.sub(r"\bap-[0-9a-f]{12}", "APPROVAL", screen)
    # A step shows its time from 50 ms on, which depends on the machine; the closing line always does.
    return re.sub(r" +\d+(?:\.\d)? s$", "", re.sub(r"· \d+(?:\.\d)? s\b", "· 0.0 s", screen), flags=re.MULTILINE)
