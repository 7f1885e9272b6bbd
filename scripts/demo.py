"""`./dev demo`: a real task without a model or a key; then the same one killed in the middle, resumed and replayed.

Works in a copy of demos/sample-workspace, so that the repository stays as it is. Standard library only.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AGENT = Path(sys.executable).with_name("agent")
TASK = (
    "First inventory the workspace, then extract every mention of the tide gauge, then summarise the notes, "
    "then write a report on the tide gauge"
)
WATCHED_SECONDS = 60.0
STEPS_BEFORE_THE_KILL = 2
WAITS = 4
"""Exit code of `agent` for a run that waits for an answer."""


def main(options: list[str]) -> int:
    folder = _copy_workspace()
    environment = {**os.environ, "AGENT_SKILLS": "all"}
    _say(f"A task for four skills, without a model and without a key, in {folder}")
    done = _run(folder, environment, "run", "--provider", "offline", "--config", os.devnull, *options, TASK)
    if done != 0 or "--dry-run" in options:
        return done
    report = next(_list_runs(folder)[-1].glob("artifacts/*.html"), None)
    if report is not None:
        _say(f"The report: {_link(report)}")
    if not _kill_in_the_middle(folder, environment):
        return 1
    _say("agent resume: finished steps are not repeated")
    if code := _resume(folder, environment):
        return code
    _say("agent replay --execute: the same decisions again, with every effect blocked")
    if code := _run(folder, environment, "replay", "latest", "--execute", "--config", os.devnull):
        return code
    _print_next_steps(folder)
    return 0


def _resume(folder: Path, environment: dict[str, str]) -> int:
    arguments = ("resume", "latest", "--config", os.devnull, "--quiet")
    code = _run(folder, environment, *arguments)
    if code != WAITS:
        return code
    _say("The kill interrupted a script, so the run asks about it. The answer here: retry")
    return _run(folder, environment, *arguments, "--answer", "retry")


def _copy_workspace() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
    folder = cache / "metier" / "demo"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="metier-demo-"))
    shutil.copytree(ROOT / "demos" / "sample-workspace", folder, dirs_exist_ok=True)
    return folder


def _kill_in_the_middle(folder: Path, environment: dict[str, str]) -> bool:
    """Start the task again and end it with SIGKILL after two of its four steps."""
    _say("The same task again, and `kill -9` after two steps")
    known = set(_list_runs(folder))
    arguments = [AGENT, "run", "--provider", "offline", "--config", os.devnull, "--quiet", TASK]
    with subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        until = time.monotonic() + WATCHED_SECONDS
        shown = 0
        while shown < STEPS_BEFORE_THE_KILL and process.poll() is None and time.monotonic() < until:
            steps = [step for run in _list_runs(folder) if run not in known for step in _list_steps(run)]
            for step in steps[shown:]:
                _show(f"  {_tick()} {step}")
            shown = len(steps)
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    if shown < STEPS_BEFORE_THE_KILL:
        _say("The task stopped before; `agent runs show latest` shows the reason")
        return False
    _show(f"  killed (exit code {process.returncode}); the journal has everything up to here")
    return True


def _list_runs(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "runs").glob("2*") if path.is_dir())


def _list_steps(run: Path) -> list[str]:
    """List the skills whose scripts have run."""
    try:
        lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    # The last line may be half written.
    events = [json.loads(line) for line in lines if line.endswith("}")]
    done = [event for event in events if event["event_type"] == "skill_step_executed"]
    return [event["skill"] or "" for event in done if event["payload"].get("tool") == "script_run"]


def _print_next_steps(folder: Path) -> None:
    _say("Next steps")
    agent = shlex.quote(str(AGENT)) if shutil.which("agent") is None else "agent"
    steps = {
        f"cd {shlex.quote(str(folder))}": "",
        f"{agent} runs list": "list the recorded runs",
        f"{agent} runs show latest": "show a run's steps, files and cost",
        agent: "choose a model and start a chat",
        f"{agent} init my-project": "create a workspace with an agent, skills, a task and rules",
    }
    width = max(map(len, steps)) + 2
    for command, purpose in steps.items():
        _show(f"  {command:{width}}{'# ' if purpose else ''}{purpose}".rstrip())


def _run(folder: Path, environment: dict[str, str], *arguments: str) -> int:
    sys.stdout.flush()
    return subprocess.run([AGENT, *arguments], cwd=folder, env=environment, check=False).returncode


def _link(path: Path) -> str:
    """A link that terminals open; elsewhere the path."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return str(path)
    return f"\x1b]8;;{path.as_uri()}\x1b\\{path}\x1b]8;;\x1b\\"


def _tick() -> str:
    return "✓" if (sys.stdout.encoding or "").lower().startswith("utf") else "ok"


def _say(text: str) -> None:
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    _show(f"\n\x1b[1m{text}\x1b[0m" if bold else f"\n{text}")


def _show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
