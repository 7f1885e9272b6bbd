"""Exact values in every form, structures, streams, and linear time."""

import base64
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from example_counts import examples
from metier.telemetry.environment_secrets import list_secret_values
from metier.telemetry.formats import build_key_formats, list_keys
from metier.telemetry.redaction import build_redactor, is_trivial
from metier.telemetry.secret_names import NamePlace, NameRules, lower_ascii

VALUE = 'p@ss/w0rd+"quoted" ü&x'
MARK = "***REDACTED***"
REDACTOR = build_redactor(values=[VALUE])

FORMS = {
    "plain": VALUE,
    "url": quote(VALUE, safe=""),
    "url in lower case": quote(VALUE, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%C3%BC", "%c3%bc"),
    "url of a path": quote(VALUE),
    "form": quote_plus(VALUE),
    "json": json.dumps(VALUE)[1:-1],
    "json in utf-8": json.dumps(VALUE, ensure_ascii=False)[1:-1],
    "json in json": json.dumps(json.dumps(VALUE)[1:-1])[1:-1],
    "hex": VALUE.encode().hex(),
    "hex in upper case": VALUE.encode().hex().upper(),
    "unicode escapes": "".join(f"\\u{ord(letter):04x}" for letter in VALUE),
    "unicode escapes in upper case": "".join(f"\\u{ord(letter):04X}" for letter in VALUE),
    "byte escapes": "".join(f"\\x{byte:02x}" for byte in VALUE.encode()),
    "byte escapes in upper case": "".join(f"\\x{byte:02X}" for byte in VALUE.encode()),
    "decimal entities": "".join(f"&#{ord(letter)};" for letter in VALUE),
    "hexadecimal entities": "".join(f"&#x{ord(letter):x};" for letter in VALUE),
    "hexadecimal entities in upper case": "".join(f"&#x{ord(letter):X};" for letter in VALUE),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_exact_value_is_found_in_every_form(form: str) -> None:
    text = f"before {form} after"

    assert REDACTOR.redact(text) == f"before {MARK} after"


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "abcd"])
@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, base64.b32encode])
def test_exact_value_is_found_inside_base64_and_base32_at_every_alignment(
    before: str, after: str, encode: Callable[[bytes], bytes]
) -> None:
    encoded = encode(f"{before}{VALUE}{after}".encode()).decode()

    shown = REDACTOR.redact(f"blob {encoded} end")

    assert MARK in shown
    assert len(shown) <= len(f"blob {MARK} end") + 12


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text(), st.text(min_size=8, max_size=40, alphabet=st.characters(codec="utf-8")))
def test_exact_value_is_found_in_any_text(before: str, after: str, value: str) -> None:
    value = value.strip()
    if is_trivial(value):
        return

    assert value not in build_redactor(values=[value]).redact(before + value + after).replace(MARK, "\0")


def test_short_and_trivial_values_do_not_damage_text() -> None:
    redactor = build_redactor(values=["a", "12345", "true", "localhost", "      ", "password", "xxxxxxxx"])

    assert redactor.redact("true: localhost 12345 a password xxxxxxxx") == "true: localhost 12345 a password xxxxxxxx"


def test_key_names_apply_in_structures_at_any_depth() -> None:
    value = build_redactor(names=["boat_name"]).redact_value(
        {
            "config": {"api_key": "sk-" + "1", "max_tokens": 5, "token_env": "X", "apiKey": ["one-1", "two-2"]},
            "list": [{"PASSWORD": "abc"}, {"boatName": "x"}, {"boat-name": "Belle"}, {"password": None, "token": True}],
            "pin": 123456,
            "passcode": 123456,
            "url": "https://u:" + "pw@x.test/",
        }
    )

    assert value == {
        "config": {"api_key": MARK, "max_tokens": 5, "token_env": "X", "apiKey": [MARK, MARK]},
        "list": [{"PASSWORD": MARK}, {"boatName": "x"}, {"boat-name": MARK}, {"password": None, "token": True}],
        "pin": 123456,
        "passcode": MARK,
        "url": f"https://u:{MARK}@x.test/",
    }


@pytest.mark.parametrize("text", ["BOAT_NAME={}", '"boat_name": "{}"', "boat-name: {}", "boat_name = '{}'"])
def test_configured_name_hides_any_value(text: str) -> None:
    redact = build_redactor(names=["BOAT_NAME"]).redact

    assert redact(text.format("Belle")) == text.format(MARK)


def test_without_generic_names_values_formats_and_configured_names_are_still_hidden() -> None:
    key = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"
    redact = build_redactor(values=["known-value"], names=["boat"], generic_names=False).redact

    assert redact(f"password=abc known-value {key} boat=Belle") == f"password=abc {MARK} {MARK} boat={MARK}"


def test_findings_have_kind_and_position_but_not_the_value() -> None:
    found = build_redactor(values=["known-value"]).find("a known-value, password=abc")

    assert [tuple(finding) for finding in found] == [("value", 2, 13), ("name", 24, 27)]


def test_values_of_secret_names_come_from_the_environment(tmp_path: Path) -> None:
    environment = {
        "X_API_KEY": "k",
        "Y_TOKEN": "t",
        "Z_SECRET": "s",
        "DB_PASSWORD": "p",
        "HOME": "/h",
        "A_TOKEN": str(tmp_path),
    }

    assert list_secret_values(environment) == ("k", "t", "s", "p")


def test_secret_that_starts_like_a_path_is_a_secret() -> None:
    encoded = "/9j4" + "AAQSkZJRgABAQEAYABgAAD" * 8

    assert list_secret_values({"X_API_KEY": encoded, "Y_TOKEN": "~/" + encoded}) == (encoded, "~/" + encoded)


STREAMED = (
    "one\npassword=hunter22 and known-value\n"
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\nggSjAgEAAoIBAQ==\n"
    "-----END RSA PRIVATE KEY-----\n"
    "two lines: first-part-of-it\nsecond-part-of-it end\nlast " + "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"
)
STREAM_VALUES = ["known-value", "first-part-of-it\nsecond-part-of-it"]


@pytest.mark.parametrize("cut", range(len(STREAMED)))
def test_stream_finds_secrets_at_every_split(cut: int) -> None:
    redactor = build_redactor(values=STREAM_VALUES)
    stream = redactor.stream()

    shown = stream.feed(STREAMED[:cut]) + stream.feed(STREAMED[cut:]) + stream.close()

    assert shown == redactor.redact(STREAMED)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=60))
def test_stream_gives_the_same_result_as_redacting_at_once(sizes: list[int]) -> None:
    redactor = build_redactor(values=STREAM_VALUES)
    stream = redactor.stream()
    shown, at = "", 0

    for size in sizes:
        shown += stream.feed(STREAMED[at : at + size])
        at += size
    shown += stream.feed(STREAMED[at:]) + stream.close()

    assert shown == redactor.redact(STREAMED)


@pytest.mark.parametrize("filler", ["x", "ab ", "-", "é"])
def test_stream_holds_back_a_limited_part_of_an_endless_line(filler: str) -> None:
    stream = build_redactor(values=["known-value"]).stream()
    fed, shown = 0, ""

    for _ in range(40):
        chunk = filler * (20_000 // len(filler)) + " known-value "
        fed += len(chunk)
        shown += stream.feed(chunk)
        assert fed - len(shown) < 150_000
    shown += stream.close()

    assert "known-value" not in shown
    assert shown.count(MARK) == 40


def test_stream_drops_the_rest_of_an_endless_secret() -> None:
    stream = build_redactor().stream()
    shown = stream.feed("x ghp_")

    for _ in range(30):
        shown += stream.feed("aB3dE6gH9j" * 1000)
    shown += stream.feed(" after\n") + stream.close()

    assert shown == f"x {MARK} after\n"


def test_stream_drops_the_body_of_an_endless_private_key() -> None:
    stream = build_redactor().stream()
    shown = stream.feed("-----BEGIN PRIVATE KEY-----\n")

    for _ in range(3000):
        shown += stream.feed("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\n")
    shown += stream.feed("-----END PRIVATE KEY-----\nafter\n") + stream.close()

    assert shown == f"-----BEGIN PRIVATE KEY-----{MARK}-----END PRIVATE KEY-----\nafter\n"


HOSTILE = [
    "sk-", "ghp_", "eyJ", "eyJaaaaaaaaaa.", "password=", "password:", "password: ", "token: ", "key=", "api_key=",
    "://a:", "https://a:", "https://a:b@", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "a", "A", "0", "-", "=", '"',
    "'", "\\", 'password="', "password='\\", "key key ", "api_key", "bearer ", "curl -u ", "mysql -p", "{a", "${",
    "<password>", "AP1", "%3D", 'auth":"', "-us", "1:AA", ".atlasv1.", "password is ", "--token ", "Cookie: a=",
    "login a password ", "ENV a ", "password: hunter2\n", "access_token$production$", ".aaaaaa.", "secret", "AKIA",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    """Quadratic time would be a minute; the limit tolerates a slow machine."""
    redactor = build_redactor(values=["known-value-1", "another-known-value"])
    text = unit * (250_000 // len(unit))

    started = time.process_time()
    redactor.redact(text)

    assert time.process_time() - started < 20


WORDS = st.sampled_from(
    [
        "password", "token", "api_key", "key", "secret", "auth", "Authorization", "Bearer", "cookie", "--token", "is",
        "=", ": ", ":", '"', "'", " ", "\n", "\\n", "\\", "://", "@", "/", "curl -u a:", "sig=", "X-Amz-", "mysql -p",
        "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6", "sk-" + "1234567890abcdefghij", "SK" + "0a1b2c3d" * 4,
        "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc", "AKIA" + "Q7R2S9T4U1V6W3X8", "glc_" + "a+b/" * 9,
        "hooks.slack.com/" + "services/T00/B00/aB3dE6gH9jK2", "known-value", "hunter2", "x9", "é", "葛", "a_b-c.d",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "1:", "AA", "-us7", "Q~",
        "-----BEGIN PRIVATE KEY-----", "-----END", "ENV ", "login ", "FlyV1 ", "fm2_", "whsec_", "-", "_", ".", "0",
    ]
)  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(WORDS | st.text(max_size=6), max_size=25).map("".join))
@example("mysql -pcurl -u a:password")
@example("-xmysql -psecret9")
@example("ENV curl -u a:password")
def test_prefilter_misses_nothing_that_a_full_search_finds(text: str) -> None:
    redactor = build_redactor(values=["known-value"])

    covered = {at for finding in redactor.find(text) for at in range(finding.start, finding.end)}

    formats = build_key_formats()
    everything = {
        *(key_format for group in formats.by_opening.values() for key_format in group),
        *formats.in_context,
        *(key_format for _, key_format in formats.inside),
        *formats.among_signs,
    }
    for key_format in everything:
        for span in list_keys(key_format, text):
            assert covered.issuperset(range(span.start, span.end)), key_format
    lowered = lower_ascii(text)
    assert len(lowered) == len(text)
    every_place = [NamePlace(match.start(), match.end()) for match in re.finditer(NAME_PARTS, lowered, re.ASCII)]
    for secret in NameRules().find(text, lowered, every_place):
        assert covered.issuperset(range(secret.start, secret.end)), secret


NAME_PARTS = r"(?:passw|passphrase|passcode|pwd|_pass|secret|token|key|auth|credential|cookie|psk)[\w-]{0,40}"


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8")), st.text(), st.sampled_from(["glpat-", "npm_", "AIza", "hvs."]))
def test_key_is_found_in_any_text(before: str, after: str, prefix: str) -> None:
    key = prefix + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"[:36]

    assert key not in build_redactor().redact(f"{before} {key} {after}")
