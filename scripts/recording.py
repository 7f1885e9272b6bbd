"""Record `docs/recording.svg`: a run that is killed, resumed, replayed and undone, as an animated picture.

The session is real: the commands run in tmux against the scripted model server of the tests.

    .venv/bin/python scripts/recording.py
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from screens import ROOT, draw

SIZE = (92, 32)
READ_SECONDS = 2.4
"""Seconds that a finished screen stays."""
TYPE_SECONDS = 0.9
"""Seconds that a typed command is shown before it runs."""
RUN = 'agent run "Translate the notes into German"'


TIDES = ("The tide is high at noon.", "Mittags ist Flut.")
MOON = ("The moon is full.", "Der Mond ist voll.")
PROMPT = r"(?s:.*)(?:\n|\A)\$ *\Z"
TITLE = "agent"
KILL_TITLE = "another terminal: kill -9"


class Frame(NamedTuple):
    screen: str
    seconds: float
    title: str = TITLE


def main() -> None:
    target = ROOT / "docs" / "recording.svg"
    target.write_text(animate(record()), encoding="utf-8")
    sys.stdout.write(f"{target.relative_to(ROOT)}\n")


def record() -> list[Frame]:
    from model_server import Reply, calls, running_model, says
    from tmux import open_terminal

    frames: list[Frame] = []
    last = says("Both notes are in German now.")
    with running_model() as model, tempfile.TemporaryDirectory() as scratch:
        folder, home = Path(scratch) / "work", Path(scratch) / "home"
        _prepare(folder, home, model.url)
        edit = Reply(text="I'll start with tides.md.", calls=(("Edit", _edit("tides.md", *TIDES)),))
        # The killed process takes a reply with it: the one it was waiting for.
        model.follow(edit, last, calls("Edit", **_edit("moon.md", *MOON)), last)
        model.hold_after = 1
        environment = {**os.environ, "HOME": str(home), "PS1": "$ ", "OPENAI_API_KEY": "k" * 12}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with open_terminal(["bash", "--norc", "-i"], folder=folder, environment=environment, size=SIZE) as terminal:

            def take(seconds: float, title: str = TITLE) -> None:
                frames.append(Frame(terminal.capture(styled=True), seconds, title))

            def run(command: str, shown: str) -> None:
                terminal.type("-l", command)
                terminal.wait_for(re.escape(command[:20]))
                take(TYPE_SECONDS)
                terminal.type("Enter")
                terminal.wait_for(f"{shown}{PROMPT}")
                take(READ_SECONDS)

            terminal.wait_for(PROMPT)
            terminal.type("-l", RUN)
            terminal.wait_for("German")
            take(TYPE_SECONDS)
            terminal.type("Enter")
            model.held.wait()
            terminal.wait_for("Flut")
            take(READ_SECONDS)
            subprocess.run(["pkill", "-9", "-f", "Translate the notes"], check=True)
            terminal.wait_for(f"Killed{PROMPT}")
            take(READ_SECONDS, KILL_TITLE)
            model.hold_after = -1
            model.released.set()
            run("agent resume latest", r"run \d{8}-")
            run("agent replay latest --execute", "Replay matches")
            run("agent undo latest --yes; cat *.md", "Undone|undo-1")
    return frames


def _prepare(folder: Path, home: Path, url: str) -> None:
    from scenes import prepare

    folder.mkdir()
    home.mkdir()
    prepare(folder, url)
    for name in ("a.md", "b.md"):
        (folder / name).unlink()
    (folder / "tides.md").write_text(f"{TIDES[0]}\n", encoding="utf-8")
    (folder / "moon.md").write_text(f"{MOON[0]}\n", encoding="utf-8")


def _edit(path: str, old: str, new: str) -> dict[str, object]:
    return {"path": path, "old": old, "new": new}


def animate(frames: list[Frame]) -> str:
    """One picture that shows the frames one after the other, forever. A reader without animations sees the last."""
    total = sum(frame.seconds for frame in frames)
    pictures: list[str] = []
    rules = [".frame { visibility: hidden; }"]
    start = 0.0
    for number, frame in enumerate(frames):
        screen = frame.screen + "\n" * (SIZE[1] - 1 - frame.screen.count("\n"))
        svg = draw(screen, width=SIZE[0], title=frame.title).replace("screen-", f"s{number}-")
        end = start + frame.seconds
        # A rich picture has one element for everything: it is placed as it is.
        pictures.append(f'<g class="frame" id="frame-{number}">{svg}</g>')
        shown = f"{start / total:.2%} {{ visibility: visible; }} {end / total:.2%} {{ visibility: hidden; }}"
        first = "" if number == 0 else "0% { visibility: hidden; } "
        rules.append(f"@keyframes show-{number} {{ {first}{shown} 100% {{ visibility: hidden; }} }}")
        rules.append(f"#frame-{number} {{ animation: show-{number} {total:.1f}s step-end infinite; }}")
        start = end
    rules.append(
        f"@media (prefers-reduced-motion: reduce) {{ .frame {{ animation: none !important; }}"
        f" #frame-{len(frames) - 1} {{ visibility: visible; }} }}"
    )
    box = re.search(r'viewBox="([^"]*)"', pictures[0])
    assert box is not None, "a picture has a size"
    style = "\n".join(rules)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}" role="img"'
        f' aria-label="A run is killed, resumed, replayed and undone">\n<style>\n{style}\n</style>\n'
        + "\n".join(pictures)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
