"""A workspace in which everything that the console shows has happened, for its tests and its pictures."""

from pathlib import Path

from model_server import ModelServer, Reply, calls, says
from run_workspace import GREET, QUICK, Workspace

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

Sum up the notes of week {{ week }} for {{ audience }}. {{ notes }}
"""
RIGHT_TO_LEFT = "سجّل ملاحظات الاجتماع ثم أرسل ملخصاً قصيراً إلى الفريق"
LONG = "Compare_the_quarterly_figures_of_every_region_" + "with_those_of_the_year_before_" * 6


def prepare(folder: Path, model: ModelServer) -> Workspace:
    """Settings, a skill, a task and notes; no run yet."""
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
    """One run for each thing that a page shows. Those that wait stay as they are."""
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
