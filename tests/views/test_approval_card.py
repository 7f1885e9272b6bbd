"""The card of a pending approval."""

import pytest
from pydantic import JsonValue
from rich.cells import cell_len

from metier.telemetry.sanitize import sanitize
from metier.views.approval_card import ApprovalCard, describe_call, render_background, render_card

NEW = "--- a.txt\n+++ a.txt\n@@ -0,0 +1 @@\n+one\n"
CHANGED = "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-one\n+two\n"


def build(tool: str, preview: str = "", **arguments: JsonValue) -> ApprovalCard:
    return ApprovalCard(approval_id="ap-1", tool=tool, arguments=arguments, preview=preview)


@pytest.mark.parametrize(
    ("card", "said"),
    [
        (build("Bash", command="ls"), "Run a command"),
        (build("Write", NEW, path="a.txt", content="one\n"), "Write the file a.txt"),
        (build("Write", CHANGED, path="a.txt", content="two\n"), "Replace the file a.txt"),
        (build("Edit", CHANGED, path="a.txt", old="one", new="two"), "Change the file a.txt"),
        (build("WebFetch", url="https://docs.example/a"), "Fetch a page from the web: https://docs.example/a"),
        (build("script_run", skill_name="s", script_name="x"), "Run the script x of skill s"),
        (build("github/create_issue", title="t"), "Call create_issue of the server github"),
        (build("Pen", text="t"), "Call the tool Pen"),
    ],
)
def test_a_card_describes_the_effect_in_plain_language(card: ApprovalCard, said: str) -> None:
    assert describe_call(card) == said
    assert render_card(card, width=80)[0].plain == f"? {said}"


def test_a_card_has_the_diff_the_reason_and_the_risk() -> None:
    card = ApprovalCard(
        approval_id="ap-1",
        tool="Edit",
        arguments={"path": "a.txt", "old": "one", "new": "two"},
        preview=CHANGED,
        reason="rule 2 of the host: People change this",
        risk="medium",
        justification="The note is wrong",
    )

    shown = [line.plain for line in render_card(card, width=80)]

    assert shown == [
        "? Change the file a.txt · medium risk",
        "      1 -one",
        "      1 +two",
        "  asked because: rule 2 of the host: People change this",
    ]
    told = "\n".join(line.plain for line in render_background(card))
    assert "model's reason: The note is wrong" in told
    assert "agent approvals" in told


def test_a_card_mentions_the_profile_only_on_request() -> None:
    card = ApprovalCard(approval_id="ap-1", tool="Pen", reason="Profile 'guarded' asks", is_default=True)

    assert "guarded" not in "\n".join(line.plain for line in render_card(card, width=80))
    assert "guarded" in "\n".join(line.plain for line in render_background(card))


def test_hostile_arguments_stay_in_their_lines_and_are_truncated() -> None:
    text = "\x1b[2J\u202e evil \x07\n" * 100 + "x" * 1_000_000
    card = build("Bash\x1b[31m", command=text, other=text)

    lines = render_card(card, width=80)

    assert all(sanitize(line.plain) == line.plain and "\n" not in line.plain for line in lines)
    assert sum(len(line.plain) for line in lines) < 50_000
    assert any("more lines; ? shows all" in line.plain for line in lines)


def test_a_card_wraps_long_lines_of_a_diff_instead_of_truncating_them() -> None:
    long = "curl https://docs.example | sh; " * 4 + "漢字" * 20
    preview = f"--- a.sh\n+++ a.sh\n@@ -0,0 +1,2 @@\n+{long}\n+end\n"

    shown = render_card(build("Write", preview, path="a.sh"), width=40)[1:]

    assert all(cell_len(line.plain) <= 40 for line in shown)
    assert [line.plain[:9] for line in shown] == ["      1 +", *[" " * 9] * (len(shown) - 2), "      2 +"]
    assert "".join(line.plain[9:] for line in shown[:-1]) == long


def test_a_card_truncates_an_extremely_long_line_of_a_diff_unless_all_is_shown() -> None:
    preview = f"--- a.sh\n+++ a.sh\n@@ -0,0 +1 @@\n+{'x' * 5_000}\n"
    card = build("Write", preview, path="a.sh")

    shown, whole = (
        "".join(line.plain.strip() for line in render_card(card, width=80, most=most)) for most in (80, None)
    )

    assert "more characters; ? shows all" in shown
    assert shown.count("x") < 2_500
    assert whole.count("x") == 5_000
