"""Pages of runs: Markdown by allowlist, escaping everywhere, and a shared file that needs nothing else."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from hostile_text import PAYLOADS
from msgspec.structs import replace

from metier.views.page_rendering import ELEMENTS, render_markdown_html, render_share
from metier.views.run_view import CallView, NoteView, RunView, StepView, TextView, Waiting

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
ALLOWED = ELEMENTS | {"a", "br", "span"}


class Elements(HTMLParser):
    """A parser that collects every element and attribute."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("text", PAYLOADS)
def test_markdown_produces_only_allowed_elements_and_no_active_urls(text: str) -> None:
    for tag, attributes in Elements(render_markdown_html(text)).found:
        assert tag in ALLOWED
        assert set(attributes) <= {"href", "rel", "target", "class"}
        assert re.match(r"https?:|mailto:", attributes.get("href") or "https:")


def test_a_link_shows_its_target_and_an_image_is_not_fetched() -> None:
    page = render_markdown_html("[your bank](https://evil.invalid/x) ![p](https://evil.invalid/p.png)")

    assert "[evil.invalid]" in page
    assert 'rel="noreferrer noopener nofollow"' in page
    assert "<img" not in page


def test_markdown_of_models_keeps_its_structure() -> None:
    page = render_markdown_html(
        "# Report\n\n- **one**\n- `two`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx < 1\n```"
    )

    for piece in ("<h1>Report</h1>", "<strong>one</strong>", "<code>two</code>", "<td>1</td>", "x &lt; 1"):
        assert piece in page


def build_hostile(text: str) -> RunView:
    step = StepView(
        step_id="s1",
        turn=1,
        tool=text,
        line=text,
        arguments={text: text, "path": text, "content": text},
        state="failed",
        output=text,
        error=text,
        rule=text,
        skill=text,
        started_at=BEGAN,
    )
    return RunView(
        run_id="r1",
        task=text,
        agent=text,
        model=text,
        provider=text,
        status="failed",
        reason=text,
        message=text,
        started_at=BEGAN,
        updated_at=BEGAN,
        items=(step, TextView(turn=1, text=text), NoteView(turn=1, level="warning", text=text)),
        calls=(CallView(turn=1, provider=text, model=text, stop_reason=text),),
        waiting=Waiting(kind="input", text=text),
        artifacts=(text,),
        children=(RunView(run_id="c1", task=text, answer=text, status="completed", agent=text),),
    )


@pytest.mark.parametrize("text", PAYLOADS)
def test_no_text_of_a_run_becomes_markup_of_its_page(text: str) -> None:
    hostile = build_hostile(text)
    harmless = build_hostile("plain")

    page, plain = (
        render_share(view, {"r1:s1": f"--- a\n+++ b\n@@ -1 +1 @@\n-{view.task}\n+{view.task}"})
        for view in (hostile, harmless)
    )
    seen = {tag for tag, _ in Elements(page).found}

    assert seen - ALLOWED <= {tag for tag, _ in Elements(plain).found}
    assert not {"script", "img", "iframe", "form", "base", "link"} & seen
    for _, attributes in Elements(page).found:
        assert not [name for name in attributes if name.startswith(("on", "hx-"))]


def test_a_shared_page_fetches_nothing_and_runs_nothing() -> None:
    view = replace(build_hostile("a task"), answer="**done**", status="completed", message="")

    page = render_share(view)

    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<strong>done</strong>" in page
