"""A workspace with data for every console page, for tests and pictures."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast, get_args

import anyio
from console_client import ConsoleClient
from model_server import ModelServer, Reply, calls, says
from run_workspace import GREET, QUICK, Workspace

from metier.decisions import TaskState
from metier.evals.eval_results import EvalResult, save_result
from metier.evals.eval_results import RunRow as EvalRow
from metier.evals.grading import Grade
from metier.ids import format_run_id
from metier.runtime.opened_host import open_host
from metier.runtime.runs import open_runtime
from metier.store.base import RunRow

ANSWER = """# Notes of this week

Three notes were written; the [guide](https://docs.example/notes) names **two** that are still open.

| note | state |
|------|-------|
| `roadmap.md` | open |
| `budget.md` | open |
| `minutes.md` | done |

1. Close the roadmap before Friday.
2. Ask Ada about the budget.
"""
NOTES = "# Roadmap\n\n- ship the server\n- write the docs\n- rest\n"
TASK = """---
name: Weekly report
description: Sum up the notes of a week for the team.
inputs:
  - name: week
    description: The week to sum up, such as 2026-W03
    schema: {type: string}
  - name: audience
    description: Who reads it
    default: team
    schema: {type: string, enum: [team, board, everyone]}
  - name: notes
    description: Anything to add, in your own words
    default: ""
    schema: {type: string}
---

Sum up the notes of week {{inputs.week}} for {{inputs.audience}}. {{inputs.notes}}
"""
RIGHT_TO_LEFT = "سجّل ملاحظات الاجتماع ثم أرسل ملخصاً قصيراً إلى الفريق"
LONG = "Compare_the_quarterly_figures_of_every_region_" + "with_those_of_the_year_before_" * 6


def prepare(folder: Path, model: ModelServer) -> Workspace:
    """Write settings, a skill, a task and notes, without runs."""
    made = Workspace(folder)
    made.configure(
        model={"provider": "openai", "name": "gpt-5.6-luna", "providers": {"openai": {"base_url": model.url}}},
        runtime={**QUICK, "profile": "guarded", "max_turns": 12, "max_cost_usd": 0.5},
    )
    made.add_skill("greeter", "Greet a person kindly with a script.", greet=GREET)
    made.add_skill("weekly-report", "Sum up the notes of a week as a short report with a table.")
    made.write("notes/roadmap.md", NOTES)
    made.write("notes/budget.md", "# Budget\n\nAsk Ada.\n")
    made.write(".agent/tasks/weekly-report/TASK.md", TASK)
    return made


def run_everything(workspace: Workspace, model: ModelServer) -> None:
    """Create one run for each page element. Paused ones stay paused."""
    model.follow(
        Reply(
            text="I look at the notes first.",
            calls=(("Glob", {"pattern": "notes/*.md"}), ("Read", {"path": "notes/roadmap.md"})),
        ),
        Reply(
            text="Now the budget.",
            calls=(("Read", {"path": "notes/budget.md"}), ("Read", {"path": "notes/nowhere.md"})),
        ),
        says(ANSWER),
    )
    workspace.agent("run", "Sum up the notes of this week", "-q")
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Greeted, kindly."))
    workspace.agent("run", "Greet Ada", "--profile", "permissive", "-q")
    model.follow(calls("Read", path="notes/roadmap.md"), says("It is short."))
    workspace.agent("run", RIGHT_TO_LEFT, "-q")
    model.follow(Reply(status=401))
    workspace.agent("run", LONG, "-q")
    model.follow(calls("Read", path="notes/roadmap.md"), calls("Read", path="notes/budget.md"), says("Done."))
    workspace.agent("run", "Read everything twice", "--max-turns", "1", "-q")
    wait_for_approval(workspace, model)
    model.follow(calls("Bash", command="rm -rf build && make all"))
    workspace.agent("run", "Build the project from nothing", "-q")
    ask_question(workspace, model)


def wait_for_approval(
    workspace: Workspace, model: ModelServer, *, task: str = "Put the docs before the server"
) -> None:
    model.follow(
        Reply(
            text="The docs should come first, as agreed on Monday.",
            calls=(
                (
                    "Edit",
                    {
                        "path": "notes/roadmap.md",
                        "old": "- ship the server\n- write the docs",
                        "new": "- write the docs\n- ship the server",
                    },
                ),
            ),
        ),
        says("The docs come first now."),
    )
    workspace.agent("run", task, "-q")


def ask_question(workspace: Workspace, model: ModelServer) -> None:
    fields = {
        "type": "object",
        "properties": {
            "date": {"type": "string", "title": "Date", "description": "The day of the release"},
            "channel": {"type": "string", "title": "Channel", "enum": ["beta", "stable"]},
            "announce": {"type": "boolean", "title": "Announce it"},
        },
        "required": ["date", "channel"],
    }
    model.follow(calls("ask_user", question="When shall the release be, and where?", fields=fields), says("Planned."))
    workspace.agent("run", "Plan the release", "-q")


def run_rest(workspace: Workspace, model: ModelServer) -> dict[str, str]:
    """Add the data that only the pictures need. Returns IDs by their placeholders in addresses."""
    run_ids = workspace.run_ids()
    model.follow(
        calls("Write", path="notes/week.md", content="# Week\n\n- shipped\n- rested\n"),
        calls("Bash", command="printf done >> notes/week.md && cat notes/" + "a_very_long_file_name_" * 6 + ".md"),
        says("Written."),
    )
    workspace.agent("run", "Write the week down", "--profile", "permissive", "-q")
    step = "---\nname: {}\n{}---\n\n{}\n"
    workspace.write(".agent/tasks/two/TASK.md", step.format("Look", "next: report.md\n", "Look at the notes."))
    workspace.write(".agent/tasks/two/report.md", step.format("Report", "", "Report what was seen."))
    model.follow(
        calls("Read", path="notes/roadmap.md"), says("I looked."), calls("Read", path="notes/none.md"), says("Done.")
    )
    workspace.agent("task", "run", "two")
    looks = [
        Reply(
            text=RIGHT_TO_LEFT if turn % 3 == 0 else "",
            calls=tuple(("Grep", {"pattern": f"{word}{turn}", "path": "notes"}) for word in ("ship", LONG, "كلمة")),
        )
        for turn in range(10)
    ]
    model.follow(*looks, says(f"{RIGHT_TO_LEFT}\n\n`{LONG}`"))
    workspace.agent("run", f"Find everything. {RIGHT_TO_LEFT} {LONG}", "-q")
    workspace.agent("schedule", "add", "nightly", "Sum up the day", "--cron", "0 6 * * *")
    workspace.agent("schedule", "add", "weekly-figures-of-every-region", LONG, "--every", "6h")
    keep_evals(workspace.folder)
    changed, parent, long_run = workspace.run_ids()[-3:]
    return {"RUN": run_ids[0], "FAILED": run_ids[3], "CHANGED": changed, "PARENT": parent, "LONG": long_run}


def talk(console: ConsoleClient, model: ModelServer) -> dict[str, str]:
    """Create a conversation of two turns and return it and the newest approval by placeholder."""
    model.follow(calls("Read", path="notes/budget.md"), says("Ask **Ada** about it."), says(RIGHT_TO_LEFT))
    console.open("/chat")
    console.submit("/chat", message="What about the budget?")
    (context,) = re.findall(r'action="/chat/([\w-]+)"', console.page)
    while "<strong>Ada</strong>" not in console.open(f"/chat/{context}"):
        pass
    console.submit(f"/chat/{context}", message=f"{RIGHT_TO_LEFT} {LONG}")
    while "Answering" in console.open(f"/chat/{context}"):
        pass
    approval = re.findall(r'id="approval-(ap-\w+)"', console.open("/"))[-1]
    console.open("/runs?q=notes&status=completed")
    console.submit("/runs/views", name="Notes that are done")
    return {"CHAT": context, "APPROVAL": approval}


def fill_list(folder: Path, *, count: int, minutes: int = 5) -> None:
    """Add index-only runs at this interval in minutes."""

    async def fill() -> None:
        host = open_host(folder, environ=os.environ, home=Path(os.environ["HOME"]), config=None).host
        states = cast("tuple[TaskState, ...]", get_args(TaskState.__value__))
        tasks = ("Sum up the notes", RIGHT_TO_LEFT, LONG, "Look at https://docs.example/a?b=c&d=<e>", "Tidy")
        async with open_runtime(host) as runtime:
            for number in range(count):
                began = datetime.now(UTC) - timedelta(minutes=minutes * (count - number))
                await runtime.store.create_run(
                    RunRow(
                        run_id=format_run_id(began, number.to_bytes(6)),
                        context_id="",
                        status=states[number % len(states)],
                        task=f"{tasks[number % len(tasks)]} {number}",
                        agent="" if number % 2 else "quarterly-figures-of-every-region",
                        model="gpt-5.6-luna",
                        created_at=began,
                        updated_at=began + timedelta(seconds=number % 977),
                        turns=number % 23,
                        cost_usd=number / 1000,
                        tokens=97 * number,
                    )
                )

    # In a thread of its own: the event loop of a browser may run in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, fill).result()


def keep_evals(folder: Path) -> None:
    missed = Grade(check="contains", text="contains: '2 files'", verdict="failed", evidence=f"{LONG} {RIGHT_TO_LEFT}")
    for day in range(1, 9):
        rows = tuple(
            EvalRow(
                case_id=case,
                status="failed" if (day + number) % 4 == 0 else "passed",
                grades=(missed,) if (day + number) % 4 == 0 else (),
            )
            for number, case in enumerate(("sums-up-a-week", "names-what-is-open", LONG[:60]))
        )
        save_result(
            folder / "runs",
            EvalResult(
                id=f"{day:02}",
                target="skill:weekly-report",
                mode="replay",
                started_at=f"2026-11-{day:02}",
                commit=f"{day:x}" * 40,
                rows=rows,
            ),
        )
