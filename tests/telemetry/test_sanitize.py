"""Outside text cannot control a terminal, hide, or fake a line; ordinary text is not changed."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metier.telemetry.sanitize import sanitize, sanitize_line

SHOWN = {
    "colour": ("a\x1b[31mred\x1b[0m", "ared"),
    "eight-bit colour": ("\x9b31mred", "red"),
    "cursor": ("a\x1b[2K\x1b[1Gb", "ab"),
    "link": ("\x1b]8;;https://evil.test\x1b\\text\x1b]8;;\x1b\\", "text"),
    "link, other end": ("\x1b]8;id=1;https://evil.test\x07text\x1b]8;;\x07", "text"),
    "clipboard": ("\x1b]52;c;cm0gLXJmIC8=\x07x", "\\x1b]52…x"),
    "title": ("\x1b]0;you are root\x07x", "\\x1b]0…x"),
    "unfinished clipboard": ("\x1b]52;c;cm0gLXJm", "\\x1b]52;c;cm0gLXJm"),
    "unfinished over lines": ("\x1b]0;a\nb", "\\x1b]0;a\nb"),
    "device control": ("\x1bPq#0\x1b\\x", "\\x1bP…x"),
    "application command": ("\x1b_payload\x1b\\x", "\\x1b_…x"),
    "privacy message": ("\x1b^payload\x1b\\x", "\\x1b^…x"),
    "start of string": ("\x1bXpayload\x1b\\x", "\\x1bX…x"),
    "eight-bit string": ("\x90payload\x9cx", "\\x90…x"),
    "unfinished escape": ("a\x1b", "a\\x1b"),
    "unfinished sequence": ("a\x1b[12", "a\\x1b[12"),
    "null and bell": ("a\x00\x07\x08b", "a\\x00\\x07\\x08b"),
    "delete and next line": ("a\x7f\x85b", "a\\x7f\\x85b"),
    "bidi": ("a\u202eb\u2066c\u200fd", "a\\u202eb\\u2066c\\u200fd"),
    "zero width": ("a\u200bb\ufeffc\u2060d", "a\\u200bb\\ufeffc\\u2060d"),
    "joiner between letters": ("a\u200db", "a\\u200db"),
    "tags": ("x\U000e0041\U000e0042", "x\\U000e0041\\U000e0042"),
    "selectors on letters": ("a\ufe0fb\U000e0100", "a\\ufe0fb\\U000e0100"),
    "line and paragraph separators": ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
    "surrogate": ("a\ud800b", "a\\ud800b"),
    "lone carriage return": ("safe\rrm -rf", "safe\\rrm -rf"),
    "windows line ends": ("a\r\nb\r\n", "a\nb\n"),
}

KEPT = [
    "plain\ttext\nwith lines\n",
    "Grüße, 你好, שלום, مرحبا",
    "👩‍👩‍👧 family, ❤️ heart, 1️⃣ keycap, 🏳️‍🌈 flag, 👍🏽",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "می‌خواهم",
    "क्‍ष",
    "葛\U000e0100",
    "tilde ~ and back\\slash \\x1b",
]


@pytest.mark.parametrize(("text", "shown"), SHOWN.values(), ids=SHOWN.keys())
def test_dangerous_character_is_removed_or_made_visible(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@pytest.mark.parametrize("text", KEPT)
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert sanitize(text) == text


def test_clean_text_is_returned_as_the_same_object() -> None:
    text = "clean text\n" * 10

    assert sanitize(text) is text


def test_one_line_cannot_fake_another() -> None:
    assert sanitize_line("a\nerror: fake\r\n\tb\x0bc\u2028d") == "a\\nerror: fake\\n\\tb\\x0bc\\u2028d"


HOSTILE = st.text(
    alphabet=st.sampled_from(
        "\x1b[]8;0m\\\x07\x9b\x9c\x9d\x90P\r\n\t a\ufe0f\u200d\u20e3❤👩\U0001f3f4\U000e0061\U000e007f\u0645葛\u2066("
    )
)


@given(HOSTILE | st.text(st.characters()))
def test_sanitizing_twice_changes_nothing(text: str) -> None:
    once = sanitize(text)

    assert sanitize(once) == once
    assert sanitize_line(sanitize_line(text)) == sanitize_line(text)


@given(HOSTILE | st.text(st.characters()))
def test_sanitized_text_has_no_control_characters_and_can_be_encoded(text: str) -> None:
    shown = sanitize(text)

    shown.encode()
    assert not any(
        (ord(character) < 32 and character not in "\n\t") or 127 <= ord(character) < 160 for character in shown
    )
    assert "\n" not in sanitize_line(text)


@pytest.mark.parametrize(
    "unit", ["\x1b]", "\x1b[", "\x1b]8;;", "\x1b", "\x9d1", "\x1bP", "👩\u200d", "\r", "\x1b[1;", "\x1b]0;aaaa"]
)
def test_hostile_half_megabyte_takes_linear_time(unit: str) -> None:
    started = time.process_time()
    sanitize(unit * (500_000 // len(unit)))

    assert time.process_time() - started < 20
