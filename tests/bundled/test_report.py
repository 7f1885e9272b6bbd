"""The report drafter: its content is escaped, and the page is self-contained."""

import json
from html.parser import HTMLParser
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


VOID = {"meta", "br", "hr", "img", "link", "input"}
HOSTILE = (
    "</title><script>alert(1)</script><img src=x onerror=alert(2)> \"'&`code` **bold** [x](javascript:alert(3)) "
    "<script>tail"
)


class Page(HTMLParser):
    """A parser that rejects badly nested tags and collects what a browser would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} has a handler {name}"
            if name in ("src", "srcset", "data", "action", "poster") or (name == "href" and tag != "a"):
                self.loads.append(value or "")
            elif name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data


def draft(run: Run, folder: Path, *arguments: str | Path) -> tuple[dict[str, Any], str, Page]:
    result = run(
        "markdown-report-drafter", "draft", "--out", folder, "--date", "2025-03-03", *arguments, "--json"
    ).result
    markdown, page = (Path(path).read_text(encoding="utf-8") for path in result["artifacts"])
    return result, markdown, Page(page)


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_the_page_loads_nothing_and_forbids_loading(run: Run, tmp_path: Path) -> None:
    notes = write(tmp_path / "n.md", "See ![chart](https://example.org/a.png) and [docs](https://example.org/d).\n")
    result, _, page = draft(run, tmp_path / "out", "--input", notes, "--title", "Status")
    assert page.loads == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.seen)
    assert "https://example.org/d" in page.links
    text = Path(result["artifacts"][1]).read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text
    assert "@media print" in text
    assert "prefers-color-scheme: dark" in text
    assert "@TITLE@" not in text


@pytest.mark.parametrize("door", ["title", "task", "section", "summary", "key", "cell", "path", "markdown"])
def test_hostile_text_is_shown_and_never_interpreted(run: Run, tmp_path: Path, door: str) -> None:
    data: dict[str, Any] = {"skill": "x", "summary": "s", "rows": [{"a": 1}]}
    arguments: list[str | Path] = []
    match door:
        case "title" | "task":
            arguments = [f"--{door}", HOSTILE]
        case "section":
            arguments = ["--section", f"{HOSTILE.replace('=', '')}=text"]
        case "summary":
            data["summary"] = HOSTILE
        case "key":
            data["rows"] = [{HOSTILE: 1}]
        case "cell":
            data["rows"] = [{"a": HOSTILE}, {"a": "@BODY@ | x"}]
        case "path":
            rows: list[Any] = [{"path": HOSTILE, "snippets": [{"lines": [{"line": 1, "text": HOSTILE, "terms": []}]}]}]
            data = {"skill": "keyword-search-extractor", "summary": "s", "results": rows}
        case _:
            arguments = [
                "--input",
                write(tmp_path / "hostile.md", f"# {HOSTILE}\n\n- {HOSTILE}\n\n| a |\n|---|\n| {HOSTILE} |\n"),
            ]
    previous = write(tmp_path / "previous.json", [data])
    _, _, page = draft(run, tmp_path / "out", "--previous", previous, *arguments)
    assert not {"script", "img"} & set(page.seen)
    assert page.loads == []
    assert all(link.startswith(("#", "http", "mailto:")) for link in page.links)
    assert "alert(1)" in page.words


def test_markdown_escapes_data(run: Run, tmp_path: Path) -> None:
    data = {
        "skill": "x",
        "summary": "# not a heading",
        "rows": [{"name": "a|b_c*d", "note": "line\nbreak"}, {"name": "1. x"}],
    }
    _, markdown, page = draft(run, tmp_path / "out", "--input", write(tmp_path / "d.json", data))
    assert "\n\\# not a heading\n" in markdown
    assert "| a\\|b\\_c\\*d | line break |" in markdown
    assert "| 1\\. x |  |" in markdown
    assert "a|b_c*d" in page.words
    assert "1. x" in page.words


def test_markdown_notes_become_a_page(run: Run, tmp_path: Path) -> None:
    notes = write(
        tmp_path / "notes.md",
        "# Top\n\nText with **bold**, *slant*, `a < b` and a\nsecond line.\n\n- one\n- [x] two\n  goes on\n\n"
        "> said\n\n| a | b |\n| --- | ---: |\n| x \\| y | 3 |\n\n```py\nprint('<')\n```\n",
    )
    result, _, page = draft(run, tmp_path / "out", "--input", notes)
    text = Path(result["artifacts"][1]).read_text(encoding="utf-8")
    assert "<strong>bold</strong>, <em>slant</em>, <code>a &lt; b</code> and a second line.</p>" in text
    assert '<li>one</li>\n<li class="task done">two goes on</li>' in text
    assert "<blockquote>said</blockquote>" in text
    assert '<td>x | y</td><td class="number">3</td>' in text
    assert "<pre><code>print(&#x27;&lt;&#x27;)</code></pre>" in text
    assert result["sections"] == ["Notes", "Top"]
    assert page.words


def test_steps_failures_and_unknown_results_each_get_a_section(run: Run, tmp_path: Path) -> None:
    steps: list[Any] = [
        {
            "skill": "release-notes",
            "result": {"summary": "3 changes", "changes": [{"id": 1, "text": "Faster"}], "by": "Ada"},
        },
        {"skill": "deploy", "success": False, "error": "timeout", "message": "Script timed out after 60s"},
        {"success": True, "result": {"skill": "workspace-inventory", "summary": "2 files", "languages": []}},
        "just words",
    ]
    result, markdown, _ = draft(run, tmp_path / "out", "--previous", write(tmp_path / "p.json", {"steps": steps}))
    assert result["sections"] == ["At a glance", "Release notes", "Deploy", "What is in the workspace", "Step 4"]
    assert "| 1 | Faster |" in markdown
    assert "This step failed: Script timed out after 60s" in markdown
    assert "just words" in markdown


def test_an_existing_report_is_kept_unless_forced(run: Run, tmp_path: Path) -> None:
    first, _, _ = draft(run, tmp_path, "--section", "A=one")
    second, _, _ = draft(run, tmp_path, "--section", "A=two")
    assert [Path(path).name for path in second["artifacts"]] == ["report-2.md", "report-2.html"]
    assert "one" in Path(first["artifacts"][0]).read_text()
    third, markdown, _ = draft(run, tmp_path, "--section", "A=three", "--force")
    assert third["artifacts"] == first["artifacts"]
    assert "three" in markdown
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report-2.html",
        "report-2.md",
        "report.html",
        "report.md",
    ]


def test_empty_placeholders_produce_an_outline_with_a_note(run: Run) -> None:
    outcome = run("markdown-report-drafter", "draft", "--previous", "", "--task", "", "--out", "", "--json")
    assert outcome.result["artifacts"] == []
    assert "outline only" in outcome.result["summary"]
    assert "## Next steps" in outcome.result["markdown"]


def test_the_title_comes_from_the_request(run: Run) -> None:
    task = "- first look at the harbour, then draft a report"
    assert (
        run("markdown-report-drafter", "draft", "--task", task, "--json").result["title"]
        == "- first look at the harbour"
    )
    assert (
        run("markdown-report-drafter", "draft", "--task", "First, count it; report", "--json").result["title"]
        == "Count it"
    )


def test_the_title_of_a_requested_report_names_its_subject(run: Run, tmp_path: Path) -> None:
    found = write(tmp_path / "found.json", '{"skill": "workspace-inventory", "summary": "2 files"}')
    asked = {
        "write a report of it": "Report: what is in the workspace",
        "Draft a short report on the tide gauge": "Report on the tide gauge",
        "please write us a summary about SMS warnings.": "Summary on SMS warnings",
    }
    for task, title in asked.items():
        outcome = run("markdown-report-drafter", "draft", "--input", found, "--task", task, "--json")
        assert outcome.result["title"] == title


@pytest.mark.parametrize("content", ["{broken", "[" * 100_000])
def test_unreadable_input_prints_one_message(run: Run, tmp_path: Path, content: str) -> None:
    outcome = run("markdown-report-drafter", "draft", "--input", write(tmp_path / "x.json", content), "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
    missing = run("markdown-report-drafter", "draft", "--input", tmp_path / "none.json", "--json")
    assert missing.err.startswith("error: Cannot read ")
    escape = run("markdown-report-drafter", "draft", "--out", tmp_path, "--name", "../x", "--json")
    assert (escape.code, list(tmp_path.parent.glob("x.*"))) == (2, [])
