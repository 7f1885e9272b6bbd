"""Inventory, search, summary and checklist, on real folders with known answers."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Protocol

import pytest


class Outcome(Protocol):
    """The outcome of a script; `result` is the JSON object on standard output."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]: ...


class Run(Protocol):
    def __call__(self, skill: str, script: str, *arguments: str | Path) -> Outcome: ...


ON_ODD_FILES: list[tuple[str, str, list[str]]] = [
    ("workspace-inventory", "inventory", []),
    ("keyword-search-extractor", "search", ["--keywords", "harbour"]),
    ("content-summarizer", "summarize", []),
    ("task-checklist-builder", "checklist", []),
]
SAMPLE = Path(__file__).parents[2] / "demos" / "sample-workspace"


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "-C", str(root), *arguments], check=True, capture_output=True)


@pytest.mark.parametrize("call", ON_ODD_FILES)
def test_odd_files_do_not_stop_a_script(run: Run, odd_folder: Path, call: tuple[str, str, list[str]]) -> None:
    skill, script, arguments = call
    outcome = run(skill, script, "--root", odd_folder, *arguments, "--json")
    assert outcome.err == ""
    assert next(iter(outcome.result)) == "summary"
    assert outcome.result["skill"] == skill
    assert run(skill, script, "--root", odd_folder, *arguments).code == 0


@pytest.mark.parametrize("call", ON_ODD_FILES)
def test_an_empty_folder_is_accepted_and_a_missing_one_is_an_error(
    run: Run, tmp_path: Path, call: tuple[str, str, list[str]]
) -> None:
    skill, script, arguments = call
    assert run(skill, script, "--root", tmp_path, *arguments, "--json").result["summary"]
    outcome = run(skill, script, "--root", tmp_path / "nowhere", *arguments, "--json")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: '")


def test_inventory_counts_files(run: Run, odd_folder: Path) -> None:
    result = run("workspace-inventory", "inventory", "--root", odd_folder, "--list-files", "--json").result
    totals = result["totals"]
    assert totals["files"] == 12
    assert totals["folders"] == 0
    assert totals["symlinks"] == 2
    assert totals["special"] == 1
    assert totals["empty_files"] == 1
    assert totals["binary_files"] == 2
    assert result["ignored"] == {"node_modules": 1}
    assert {"path": "broken", "reason": "broken symbolic link"} in result["skipped"]
    assert result["largest"][0] == {"path": "huge.log", "bytes": 104857600, "lines": None}
    assert [row["paths"] for row in result["duplicates"]] == [["copy.txt", "no-newline.txt"]]
    names = {row["path"] for row in result["files"]}
    assert "bad-\\xff-name.txt" in names
    assert "line\\nbreak.txt" in names
    assert result["git"] is None


def test_inventory_lists_languages_lines_and_git_state(run: Run, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("one\ntwo\nthree")
    (tmp_path / "README.md").write_text("# Title\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Begin")
    (tmp_path / "app.py").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path / "new.txt").write_text("new\n")

    result = run("workspace-inventory", "inventory", "--root", tmp_path, "--json").result

    rows = {row["language"]: (row["files"], row["lines"]) for row in result["languages"]}
    assert rows == {"Python": (1, 4), "Markdown": (1, 1), "Text": (1, 1)}
    assert (result["git"]["branch"], result["git"]["commits"]) == ("main", 1)
    assert (result["git"]["changed"], result["git"]["untracked"]) == (1, 1)
    assert result["git"]["latest"]["subject"] == "Begin"
    assert "git branch 'main' with 2 open changes" in result["summary"]


def test_inventory_runs_no_program_configured_by_the_repository(run: Run, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "spy.sh").write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    (tmp_path / "spy.sh").chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(tmp_path / "spy.sh"))
    assert run("workspace-inventory", "inventory", "--root", tmp_path, "--json").result["git"] is not None
    assert not (tmp_path / "ran").exists()


def test_inventory_stops_at_the_limit_and_reports_it(run: Run, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text("x")
    result = run("workspace-inventory", "inventory", "--root", tmp_path, "--max-files", "5", "--json").result
    assert result["totals"]["files"] == 5
    assert result["truncated"] is True
    assert result["summary"].endswith("stopped at --max-files")


def test_the_records_of_earlier_runs_are_not_part_of_a_workspace(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "state.db").touch()
    (tmp_path / "runs" / "one" / "report.md").write_text("- [ ] Old task\n")
    (tmp_path / "todo.md").write_text("- [ ] New task\n")
    assert run("workspace-inventory", "inventory", "--root", tmp_path, "--json").result["totals"]["files"] == 1
    items = run("task-checklist-builder", "checklist", "--root", tmp_path, "--json").result["items"]
    assert [item["text"] for item in items] == ["New task"]


@pytest.mark.parametrize("call", ON_ODD_FILES[1:])
@pytest.mark.parametrize("bound", [("--max-seconds", "-1"), ("--max-files", "1")])
def test_reading_stops_at_a_limit_and_the_summary_reports_it(
    run: Run, call: tuple[str, str, list[str]], bound: tuple[str, str]
) -> None:
    skill, script, arguments = call
    result = run(skill, script, "--root", SAMPLE, *arguments, *bound, "--json").result
    assert result["truncated"] is True
    assert result["summary"].endswith(("not all was read", "(not all was read)", "--max-files or --max-seconds"))


def test_search_reads_every_encoding_and_cites_lines(run: Run, odd_folder: Path) -> None:
    def paths(words: str) -> set[str]:
        result = run("keyword-search-extractor", "search", "--root", odd_folder, "--keywords", words, "--json").result
        return {row["path"] for row in result["results"]}

    assert paths("Hafen") == {"windows.txt"}
    assert paths("à midi") == {"latin.txt"}
    expected = {"notes.md", "no-newline.txt", "copy.txt", "bad-\\xff-name.txt", "line\\nbreak.txt"}
    if os.access(odd_folder / "locked.txt", os.R_OK):
        expected.add("locked.txt")
    assert paths("harbour") == expected


def test_search_ranks_the_file_with_all_words_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("provider " * 30 + "\n")
    (tmp_path / "b.md").write_text("intro\n\nThe second SMS providers failed.\n\nend\n")
    (tmp_path / "c.md").write_text("nothing here\n")
    result = run(
        "keyword-search-extractor", "search", "--root", tmp_path, "--keywords", "sms, provider", "--json"
    ).result
    assert [row["path"] for row in result["results"]] == ["b.md", "a.md"]
    snippet = result["results"][0]["snippets"][0]
    assert (snippet["cite"], snippet["start"], snippet["end"]) == ("b.md:3", 2, 4)
    assert snippet["lines"][1] == {"line": 3, "text": "The second SMS providers failed.", "terms": ["sms", "provider"]}
    assert result["terms"] == [{"term": "sms", "files": 1, "hits": 1}, {"term": "provider", "files": 2, "hits": 31}]
    assert result["summary"] == "2 lines in 2 of 3 files mention 'sms', 'provider'; best: b.md:3"


def test_search_takes_words_from_a_request_and_patterns(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("call 555-1234\nthe Rotterdam gauge\n")
    root = ("--root", tmp_path, "--json")
    by_task = run("keyword-search-extractor", "search", "--keywords", "", "--task", "- Find the Rotterdam files", *root)
    assert [row["term"] for row in by_task.result["terms"]] == ["Rotterdam"]
    assert by_task.result["matching_lines"] == 1
    by_pattern = run("keyword-search-extractor", "search", "--regex", r"\d{3}-\d{4}", *root)
    assert by_pattern.result["results"][0]["snippets"][0]["cite"] == "a.txt:1"
    assert run("keyword-search-extractor", "search", "--regex", "(", *root).code == 2
    nothing = run("keyword-search-extractor", "search", "--keywords", "", "--task", "", *root)
    assert (nothing.code, nothing.out) == (2, "")


def test_search_options_narrow_the_hits(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Gauge\ngauges\nregauge\nlevel_gauge\n")

    def lines(*options: str) -> int:
        search = ("keyword-search-extractor", "search", "--root", tmp_path, "--keywords", "gauge", "--json")
        return run(*search, *options).result["matching_lines"]

    assert lines() == 3
    assert lines("--exact") == 2
    assert lines("--exact", "--case-sensitive") == 1
    assert lines("--ignore", "*.txt") == 0


def test_every_sentence_of_a_summary_is_on_the_cited_line(run: Run) -> None:
    result = run("content-summarizer", "summarize", "--root", SAMPLE, "--sentences", "6", "--json").result
    assert len(result["sentences"]) == 6
    for sentence in result["sentences"]:
        path, line = sentence["cite"].rsplit(":", 1)
        text = (SAMPLE / path).read_text(encoding="utf-8").split("\n", int(line) - 1)[-1]
        start = " ".join(sentence["text"].split()[:4])
        assert start in " ".join(text.split("\n", 2)[0].replace("*", "").split()), sentence
        assert f"[{sentence['cite']}]" in result["summary"]
    assert "forecast" in result["key_terms"]


def test_a_summary_prefers_the_main_subject_and_omits_repetition(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "---\ntitle: skipped front matter of the engine\n---\n# Engine\n\n"
        "The engine computes the forecast from the tide and the surge.\n"
        "The engine computes the forecast from the tide and surge.\n"
        "My neighbour likes green apples in autumn.\n"
        "The forecast of the engine needs the surge, e.g. Dr. Maier measured 3.5 m at the quay.\n\n"
        "```\nThe engine code block is not a sentence of the forecast.\n```\n"
    )
    arguments = ("--root", tmp_path / "a.md", "--sentences", "2", "--json")
    result = run("content-summarizer", "summarize", *arguments).result
    assert result["considered_sentences"] == 4
    texts = [sentence["text"] for sentence in result["sentences"]]
    assert texts[0].startswith("The engine computes the forecast from the tide")
    assert texts[1] == "The forecast of the engine needs the surge, e.g. Dr. Maier measured 3.5 m at the quay."
    focused = run("content-summarizer", "summarize", *arguments, "--keywords", "apples,neighbour").result
    assert any("green apples" in sentence["text"] for sentence in focused["sentences"])


def test_a_summary_reads_docstrings_comments_and_text_without_spaces(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""First line of the module doc."""\n\n\ndef f():\n    """Return the tide at noon."""\n'
    )
    (tmp_path / "b.js").write_text("// Draws the chart of the water levels.\nconst x = 1;\n")
    (tmp_path / "c.txt").write_text("潮汐は月の引力によって起こる。港の水位は毎日変わる。\n", encoding="utf-8")
    result = run("content-summarizer", "summarize", "--root", tmp_path, "--json").result
    cites = {sentence["cite"]: sentence["text"] for sentence in result["sentences"]}
    assert cites["a.py:1"] == "First line of the module doc."
    assert cites["a.py:5"] == "Return the tide at noon."
    assert cites["b.js:1"] == "Draws the chart of the water levels."
    assert cites["c.txt:1"] in {"潮汐は月の引力によって起こる。", "港の水位は毎日変わる。"}


def test_a_summary_respects_its_length_and_is_deterministic(run: Run) -> None:
    arguments = ("content-summarizer", "summarize", "--root", SAMPLE, "--words", "40", "--json")
    first = run(*arguments).result
    assert sum(len(sentence["text"].split()) for sentence in first["sentences"]) <= 40
    assert first == run(*arguments).result


MINUTES = """# Minutes

## Action items
- Ada will write the guide by Friday
- @bob: rotate the keys, urgent (due: 2025-03-10)
- [x] Book the room
- [ ] (C) Tidy the wiki, owner: Carla Diaz
- rotate the keys, urgent

We need to renew the certificate before March 20. The tide will rise. Who does it?

```
- [ ] an example, not a task
```
"""


def test_a_checklist_recognizes_priority_owner_and_date(run: Run, tmp_path: Path) -> None:
    (tmp_path / "minutes.md").write_text(MINUTES)
    (tmp_path / "a.py").write_text('x = "TODO not a comment"\ny = 1  # FIXME(dave): crash on zero\n# todo lower case\n')
    result = run("task-checklist-builder", "checklist", "--root", tmp_path, "--today", "2025-03-03", "--json").result
    rows = {item["text"]: (item["priority"], item["owner"], item["due"], item["cite"]) for item in result["items"]}
    assert rows == {
        "Rotate the keys, urgent": ("high", "bob", "2025-03-10", "minutes.md:5"),
        "Crash on zero": ("high", "dave", None, "a.py:2"),
        "Ada will write the guide by Friday": ("medium", "Ada", "2025-03-07", "minutes.md:4"),
        "We need to renew the certificate before March 20.": ("medium", None, "2025-03-20", "minutes.md:10"),
        "Tidy the wiki": ("low", "Carla Diaz", None, "minutes.md:7"),
    }
    assert [item["priority"] for item in result["items"]] == ["high", "high", "medium", "medium", "low"]
    assert next(item for item in result["items"] if item["owner"] == "bob")["also"] == ["minutes.md:8"]
    assert (result["open"], result["done"]) == (5, 1)
    assert "- [ ] Rotate the keys, urgent (@bob, due 2025-03-10) `minutes.md:5`" in result["checklist"]


@pytest.mark.parametrize(
    ("words", "due"),
    [
        ("by tomorrow", "2025-03-04"),
        ("by Monday", "2025-03-10"),
        ("in 2 weeks", "2025-03-17"),
        ("until end of month", "2025-03-31"),
        ("by 28 February", "2026-02-28"),
        ("by Feb 30", None),
        ("by 2025-13-40", None),
    ],
)
def test_dates_are_counted_from_today(run: Run, words: str, due: str | None) -> None:
    text = f"- [ ] Paint the boat {words}"
    result = run("task-checklist-builder", "checklist", "--text", text, "--today", "2025-03-03", "--json").result
    assert [item["due"] for item in result["items"]] == [due]


def test_a_checklist_can_be_written_to_a_file_and_grouped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "minutes.md").write_text(MINUTES)
    target = tmp_path / "out.txt"
    arguments = ("--root", tmp_path, "--group-by", "owner", "--include-done", "--today", "2025-03-03")
    result = run("task-checklist-builder", "checklist", *arguments, "--output", target, "--json").result
    assert result["artifacts"] == [str(target)]
    written = target.read_text(encoding="utf-8")
    assert written == result["checklist"]
    assert "## bob\n" in written
    assert "## Done\n\n- [x] Book the room" in written
    refused = run("task-checklist-builder", "checklist", *arguments, "--output", tmp_path / "no" / "x.md", "--json")
    assert (refused.code, refused.out) == (1, "")


def test_the_demo_succeeds_on_the_sample_workspace(run: Run, tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = []
    for skill, script, arguments in ON_ODD_FILES:
        words = ["--keywords", "sms,provider"] if skill == "keyword-search-extractor" else arguments
        steps.append({"skill": skill, "result": run(skill, script, "--root", SAMPLE, *words, "--json").result})
    previous = tmp_path / "previous.json"
    previous.write_text(json.dumps(steps))
    report = run("markdown-report-drafter", "draft", "--previous", previous, "--out", tmp_path / "out", "--json").result
    assert [Path(path).name for path in report["artifacts"]] == ["report.md", "report.html"]
    text = Path(report["artifacts"][0]).read_text(encoding="utf-8")
    assert "notes/2025-02-24-storm-review.md" in text
    assert "Find a second SMS provider, urgent" in text
    assert len(list(SAMPLE.rglob("*.*"))) >= 15


def test_inventory_of_thousands_of_copies_stays_short(run: Run, tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number:04}-{'x' * 100}.txt").write_text("the same\n", encoding="utf-8")

    result = run("workspace-inventory", "inventory", "--root", tmp_path, "--json").result

    assert [(row["copies"], len(row["paths"])) for row in result["duplicates"]] == [(3000, 10)]
