"""The printed lines of a view: one per step, no wider than the screen, safe for any text."""

import io
from datetime import timedelta

import pytest
from records import START
from rich.cells import cell_len
from rich.console import Console, RenderableType

from metier.telemetry.amounts import format_cost, format_seconds, format_tokens
from metier.telemetry.sanitize import sanitize
from metier.views.call_line import build_line
from metier.views.closing import render_closing
from metier.views.diff import build_diff, build_step_diff, render_diff
from metier.views.lines import (
    ChecklistItem,
    ItemState,
    render_agent_result,
    render_checklist,
    render_note,
    render_output,
    render_step,
)
from metier.views.markdown import render_markdown
from metier.views.run_view import NoteView, RunView, StepState, StepView, Usage

HOSTILE = "a\x1b[2J\x1b]0;title\x07b\u202ec\r\nd\x00" + "宽" * 300
BASH = StepView(step_id="1", tool="Bash", line="git log --oneline -5", state="succeeded", duration_ms=210)


def shown(renderable: RenderableType, *, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_step_is_one_line_with_mark_tool_arguments_and_time() -> None:
    assert render_step(BASH, width=80).plain == "✓ Bash git log --oneline -5   0.2 s"


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("failed", "✗ Bash x   exit 3   1.0 s"),
        ("denied", "✗ Bash x   denied   1.0 s"),
        ("timeout", "✗ Bash x   timed out   1.0 s"),
        ("waiting", "? Bash x   waits for approval"),
        ("in_doubt", "? Bash x   in doubt   1.0 s"),
    ],
)
def test_step_that_did_not_succeed_shows_its_status(state: StepState, line: str) -> None:
    step = StepView(step_id="1", tool="Bash", line="x", state=state, duration_ms=1000, exit_code=3)

    assert render_step(step, width=80).plain == line


def test_skipped_step_shows_the_reason() -> None:
    step = StepView(step_id="1", tool="use_skill", line="x", state="failed", error="'skill' is a required property")

    assert [line.plain.strip() for line in render_output(step, width=80)] == ["'skill' is a required property"]


def test_running_step_has_a_spinner_and_its_duration() -> None:
    step = StepView(step_id="1", tool="Bash", line="sleep 9", started_at=START)

    frames = {render_step(step, width=80, now=START + timedelta(seconds=3), frame=n).plain for n in range(3)}

    assert len(frames) == 3
    assert all(frame.endswith(" Bash sleep 9   3.0 s") for frame in frames)


@pytest.mark.parametrize("width", [20, 40, 80, 100])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    step = StepView(
        step_id="1", tool="Bash", line=build_line("Bash", {"command": HOSTILE}), output=HOSTILE, state="failed"
    )
    view = RunView(run_id="r" * 28, status="completed", turn=3, usage=Usage(input_tokens=12_345, output_tokens=410))

    lines = [render_step(step, width=width), *render_output(step, width=width)]
    lines += [render_note(NoteView(turn=0, level="info", text=HOSTILE), width=width)]
    lines += render_diff(build_diff("a\n", HOSTILE, path="p"), width=width)

    assert max(line.cell_len for line in lines) <= width
    closing = render_closing(view, width=width).plain.splitlines()
    assert max(cell_len(line) for line in closing) <= max(width, len("  run ") + 28)
    assert all(sanitize(line.plain) == line.plain and "\n" not in line.plain for line in lines)


def test_output_is_folded_with_a_count() -> None:
    step = StepView(step_id="1", tool="Bash", state="succeeded", output="\n".join("abcdefgh"), output_lines=48)

    lines = [line.plain for line in render_output(step, width=80)]

    assert lines == ["    a", "    b", "    c", "    d", "    e", "    f", "    … 42 more lines"]
    assert len(render_output(step, width=80, most=None)) == 9


def test_failed_step_shows_the_end_of_its_output_and_the_exit_code_once() -> None:
    said = "[stderr]\n" + "\n".join(f"line {n}" for n in range(9)) + "\n[exit code 3]"
    step = StepView(step_id="1", tool="Bash", state="failed", exit_code=3, output=said, output_lines=11)

    lines = [line.plain for line in render_output(step, width=80)]

    assert lines[0].strip() == "… 3 more lines"
    assert lines[-1].strip() == "line 8"


def test_closing_line_has_turns_tokens_cost_time_and_run() -> None:
    usage = Usage(input_tokens=12_345, cached_tokens=9_100, output_tokens=410, cost_usd=0.0213)
    view = RunView(run_id="r1", status="completed", turn=3, usage=usage, duration_ms=14_200)

    line = render_closing(view, width=100).plain

    assert line == "completed · 3 turns · 12.3k in (9.1k cached) · 410 out · $0.021 · 14 s · run r1"


def test_numbers_are_formatted_for_people() -> None:
    assert [format_tokens(n) for n in (0, 999, 1000, 12_345, 999_949, 1_200_000)] == [
        "0", "999", "1.0k", "12.3k", "999.9k", "1.2M",
    ]  # fmt: skip
    assert [format_cost(n) for n in (None, 0.0, 0.0213, 0.00004, 3.5)] == [
        "cost unknown", "$0.000", "$0.021", "$0.00004", "$3.50",
    ]  # fmt: skip
    assert [format_seconds(n) for n in (0.2, 14.2, 125, 3780)] == ["0.2 s", "14 s", "2 min 5 s", "1 h 3 min"]


@pytest.mark.parametrize(
    ("tool", "arguments", "line"),
    [
        ("Bash", {"command": "ls -la\npwd", "timeout": 5}, "ls -la ⏎ pwd  timeout=5"),
        ("Read", {"tool": "Read", "arguments": {"path": "a.txt", "limit": 10}}, "a.txt  limit=10"),
        ("Write", {"path": "b.txt", "content": "one\ntwo"}, "b.txt"),
        ("Grep", {"pattern": "x", "path": "src", "glob": None}, "x  src"),
        ("script_run", {"skill_name": "a", "script_name": "b", "args": ["c"]}, 'a  b  args=["c"]'),
        ("other", {"a": {"b": [1, 2]}}, 'a={"b": [1, 2]}'),
        ("other", None, ""),
    ],
)
def test_arguments_are_one_line_that_starts_with_the_main_one(tool: str, arguments: object, line: str) -> None:
    assert build_line(tool, arguments) == line  # pyright: ignore[reportArgumentType]


def test_edit_is_a_diff_with_line_numbers() -> None:
    step = StepView(step_id="1", tool="Edit", arguments={"path": "a.py", "old": "x = 1\ny = 2", "new": "x = 1\ny = 3"})

    lines = [line.plain for line in render_diff(build_step_diff(step), width=80)]

    assert lines == ["a.py", "    1  x = 1", "    2 -y = 2", "    2 +y = 3"]


def test_body_summarized_in_the_log_has_no_diff() -> None:
    body = "x… [5000 characters, 5000 bytes, sha256 " + "0" * 64 + "]"

    assert build_step_diff(StepView(step_id="1", tool="Write", arguments={"path": "p", "content": body})) == ""


def test_markdown_has_headings_lists_tables_code_and_addresses() -> None:
    text = (
        "# Title\n\nSee [docs](https://docs.example/x) and <https://a.example>.\n\n- one\n- two\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n"
    )

    lines = shown(render_markdown(text))

    assert lines[0] == "Title"
    assert "See docs (https://docs.example/x) and https://a.example." in lines
    assert "• one" in lines
    assert any(line.split() == ["1", "2"] for line in lines)
    assert "  x = 1" in lines


def test_markdown_hides_no_text_and_has_no_links() -> None:
    text = "a <!-- hidden --> <b>x</b>\n\n<script>y</script>\n\n![alt](http://t.example/p.png)\n"
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")

    with console.capture() as captured:
        console.print(render_markdown(text))

    for part in ("<!-- hidden -->", "<b>x</b>", "<script>y</script>", "http://t.example/p.png"):
        assert part in captured.get()
    assert "\x1b]8" not in captured.get()


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "x" * 1_000_000,
        "a " * 500_000,
        "> " * 5_000 + "x",
        "[" * 20_000,
        "*" * 20_000 + "a",
        "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 5_000,
        "|" * 10_000 + "\n" + "|-" * 5_000 + "|\n",
        "```\n" + "x" * 200_000,
        "```nosuchlexer\nx\n",
        "- a\n" * 5_000,
        "1. " * 3_000,
        "![" * 3_000 + "](" * 3_000,
        "\\" * 50_000,
        "&#x1b;[2J &#27;]0;t&#7;",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_markdown_stays_in_its_box_and_renders_fast(text: str) -> None:
    lines = shown(render_markdown(text), width=60)

    assert max(map(cell_len, lines), default=0) <= 60
    assert all(sanitize(line) == line for line in lines)


def test_closing_line_is_shorter_on_a_narrow_screen_and_does_not_wrap() -> None:
    usage = Usage(input_tokens=12_345, cached_tokens=9_100, output_tokens=410, cost_usd=0.021)
    view = RunView(run_id="20260102-030405-0a1b2c3d4e5f", status="completed", turn=13, usage=usage, duration_ms=14_000)

    assert render_closing(view, width=120).plain == (
        "completed · 13 turns · 12.3k in (9.1k cached) · 410 out · $0.021 · 14 s · run 20260102-030405-0a1b2c3d4e5f"
    )
    assert render_closing(view, width=100).plain.endswith(
        "12.3k in (9.1k cached) · 410 out · $0.021 · 14 s · run 20260102-030405"
    )
    assert render_closing(view, width=80).plain == (
        "completed · 13 turns · 12.3k in · 410 out · $0.021 · 14 s · run 20260102-030405"
    )
    assert render_closing(view, width=40).plain == "completed · run 20260102-030405"


def test_markdown_blocks_are_one_blank_line_apart_and_wrapped_items_are_indented() -> None:
    text = "# Title\n\nText.\n\n- " + "word " * 12 + "\n- two\n  1. nested\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd.\n"

    lines = shown(render_markdown(text), width=40)

    assert lines[:3] == ["Title", "", "Text."]
    assert lines[4].startswith("• word")
    assert lines[5].startswith("  word")
    assert "  1. nested" in lines
    assert lines[-2:] == ["", "End."]
    assert not any(lines[at : at + 2] == ["", ""] for at in range(len(lines)))


def test_inline_code_has_no_background() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")

    with console.capture() as captured:
        console.print(render_markdown("Call `run` now."))

    assert "\x1b[36mrun\x1b[0m" in captured.get()


def test_block_of_an_agent_shows_changed_files_and_the_failure() -> None:
    step = StepView(
        step_id="1", tool="Write", line="a.md", state="succeeded", diff="--- a.md\n+++ a.md\n@@ -0,0 +1 @@\n+x"
    )
    run = RunView(run_id="child-1", agent="writer", status="failed", message="The model gave up", items=(step,))

    lines = [line.plain for line in render_agent_result(run, width=80)]

    assert lines == ["    ✓ Write a.md (+1 -0)", "    The model gave up"]


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (None, ["✓ a", "✓ b", "▸ c", "☐ d", "☐ e", "☐ f"]),
        (5, ["  … 1 before", "✓ b", "▸ c", "☐ d", "  … 2 more"]),
    ],
)
def test_long_checklist_keeps_the_items_around_the_current_one(room: int | None, shown: list[str]) -> None:
    states: list[ItemState] = ["done", "done", "in_progress", "pending", "pending", "pending"]
    items = [ChecklistItem(text, state) for text, state in zip("abcdef", states, strict=True)]

    assert [line.plain for line in render_checklist(items, width=40, room=room)] == shown
