"""Streamed text: prose is shown at once, and no secret at any split of any format."""

import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from metier.telemetry.formats import KeyFormat, build_key_formats
from metier.telemetry.live_text import LIMIT, LiveText
from metier.telemetry.redaction import Redactor, build_redactor
from metier.telemetry.sanitize import sanitize
from metier.telemetry.secret_names import MARK

sys.path.insert(0, str(Path(__file__).parent))

from test_secrets import IDS, SECRETS

EXAMPLES = int(os.environ.get("METIER_SPLIT_EXAMPLES", "1"))
"""Keys of each format; more of them are for a longer run."""
REDACTOR = build_redactor()
VALUES = ("known-value", "first part of it\nsecond part of it", "pässwort mit lücken")
FORMATS = {
    f"{each.kind} {''.join(each.literals)[:24]} {number}": each
    for number, each in enumerate(
        dict.fromkeys(
            [
                *build_key_formats().among_signs,
                *(each for row in build_key_formats().by_opening.values() for each in row),
                *build_key_formats().in_context,
                *(each for _, each in build_key_formats().inside),
            ]
        )
    )
}


def stream(text: str, *cuts: int, redactor: Redactor = REDACTOR, pauses: bool = False) -> str:
    live = LiveText(redactor)
    shown, at = "", 0
    for cut in (*cuts, len(text)):
        shown += live.feed(text[at:cut])
        shown += live.pause() if pauses else ""
        at = cut
    return shown + live.close()


@pytest.mark.parametrize(("template", "secret"), [row[1:] for row in SECRETS], ids=IDS)
def test_planted_secret_is_hidden_at_every_split(template: str, secret: str) -> None:
    text = f"Here is what I found: {template.format(secret)} and that is all there is.\nMore.\n"
    whole = REDACTOR.redact(sanitize(text))

    for cut in range(0, len(text) + 1, 1 + len(text) // 200):
        assert stream(text, cut) == whole
        # After a pause one letter may stay that begins no known key.
        assert stream(text, cut, pauses=True) in (whole, whole.replace(MARK, secret[0] + MARK, 1))
    assert stream(text, *range(len(text))) == whole


@pytest.mark.parametrize("key_format", FORMATS.values(), ids=FORMATS.keys())
def test_key_of_every_format_is_hidden_at_every_split(key_format: KeyFormat) -> None:
    # What must follow or not follow a key is not made: a text without a key is a case too.
    plain = re.sub(r"\(\?(?:=|!|<!|<=)[^()]*\)", "", key_format.expression).replace("}+", "}")

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    @given(st.from_regex(plain, fullmatch=True, alphabet=st.characters(codec="ascii")))
    def check(key: str) -> None:
        text = f"Use {sanitize(key)} for it.\n"
        whole = REDACTOR.redact(sanitize(text))
        for cut in range(len(text) + 1):
            assert stream(text, cut) == whole
        assert stream(text, *range(len(text))) == whole

    check()


def test_standalone_key_is_hidden_in_most_formats() -> None:
    """The property above requires a finding in the full text: nearly every format must have one."""
    hidden = sum(MARK in REDACTOR.redact(f"Use {row[1].format(row[2])} for it.\n") for row in SECRETS)

    assert hidden == len(SECRETS)


@pytest.mark.parametrize("value", VALUES)
def test_known_value_of_several_words_is_hidden_at_every_split(value: str) -> None:
    redactor = build_redactor(values=VALUES)
    text = f"It is {value}, nothing else; first part, pässwort\n"
    whole = redactor.redact(text)

    for cut in range(len(text) + 1):
        assert stream(text, cut, redactor=redactor, pauses=True) == whole


PIECES = st.sampled_from(
    [
        *("password", "=", ": ", " ", "\n", '"', "'", "token", "hunter22", "aB3dE6gH9jK2mN5pQ8sT", "the ", "cookie"),
        *("; a=b1c2d3", "<secret>", "</secret>", "Bearer ", "curl -u me:", "https://u:", "p4ss@host/", "ghp_", "é"),
        *("宽", "\x1b[31m", "-----BEGIN RSA PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0B", "api", " key is "),
        *("-----END RSA PRIVATE KEY-----", "--password ", "known-value"),
    ]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=8))
def test_streaming_any_text_gives_the_same_result_as_redacting_it_at_once(text: str, cuts: list[int]) -> None:
    redactor = build_redactor(values=VALUES)

    shown = stream(text, *sorted(cut for cut in cuts if cut < len(text)), redactor=redactor)

    assert find_values(shown) <= find_values(redactor.redact(sanitize(text)))


def find_values(text: str) -> set[str]:
    """Return the secrets of `PIECES` that are readable."""
    return {word for word in ("hunter22", "aB3dE6gH9jK2mN5pQ8sT", "p4ss", "MIIEvQIB", "known-value") if word in text}


@pytest.mark.parametrize("text", ["Once", "Hello, wor", "The model says", "## Head", "我们今天", "*Nota", '"Quote'])
def test_prose_is_shown_without_waiting_for_the_next_word(text: str) -> None:
    live = LiveText(REDACTOR)

    assert live.feed(text) + live.pause() == text or text == "我们今天"
    assert live.feed(" and") + live.close()


def test_paragraph_without_a_line_end_is_shown_word_by_word() -> None:
    live = LiveText(REDACTOR)
    words = [f"word{'s' * (n % 5)} " for n in range(2_000)]

    held: list[bool] = []
    for word in words:
        live.feed(word)
        held.append(live.is_holding)

    assert not any(held)


@pytest.mark.parametrize("text", ["sk-ant", "gh", "password=hun", "AKIA", "the token is ab", "known-val"])
def test_possible_start_of_a_secret_is_held_back_during_a_pause(text: str) -> None:
    live = LiveText(build_redactor(values=VALUES))

    shown = live.feed(text) + live.pause() + live.pause()

    assert not shown.endswith(re.split("[= ]", text)[-1])


def test_endless_word_is_held_back_within_a_limit_and_its_secret_dropped() -> None:
    live = LiveText(REDACTOR)
    shown = "".join(live.feed("password=" + "aB3" * 100 if not n else "dE6" * 1000) for n in range(30))

    assert len(shown) < 100
    assert "dE6" not in shown + live.close()


def test_endless_line_is_held_back_within_a_limit() -> None:
    live = LiveText(REDACTOR)
    shown = sum(len(live.feed("x" * 5_000)) for _ in range(20))

    assert 100_000 - shown <= LIMIT + 5_000


def test_color_codes_cannot_split_a_secret() -> None:
    secret = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"
    text = f"x {secret[:9]}\x1b[0m{secret[9:]} y"

    for cut in range(len(text)):
        assert stream(text, cut) == f"x {MARK} y"


@pytest.mark.parametrize("text", ["👨‍👩‍👧 family", "1️⃣ one", "a\r\nb", "क्‍ष", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "x\x1b]0;title\x07y", "\u202eabc"])
def test_sequences_are_sanitized_equally_at_every_split(text: str) -> None:
    for cut in range(len(text) + 1):
        assert stream(text, cut) == sanitize(text)
    assert stream(text, *range(len(text))) == sanitize(text)
