"""Random words without a known format: detected by entropy, and exceptions."""

import random
import string
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from metier.telemetry.redaction import build_redactor

BASE62 = string.ascii_letters + string.digits
BASE36 = string.ascii_lowercase + string.digits
UPPER36 = string.ascii_uppercase + string.digits
URL_SAFE = BASE62 + "_-"
HEX = "0123456789abcdef"
LOWER = string.ascii_lowercase
RNG = random.Random(20261115)


def _word(characters: str, length: int) -> str:
    return "".join(RNG.choices(characters, k=length))


SHAPES: dict[str, Callable[[], str]] = {
    **{f"base62 of {n}": lambda n=n: _word(BASE62, n) for n in (20, 24, 28, 32, 36, 40, 48, 64)},
    **{f"base36 of {n}": lambda n=n: _word(BASE36, n) for n in (24, 26, 30, 32, 36, 40, 50, 64)},
    **{f"upper case of {n}": lambda n=n: _word(UPPER36, n) for n in (26, 32, 40)},
    **{f"URL-safe of {n}": lambda n=n: _word(URL_SAFE, n) for n in (32, 43, 64, 86)},
    "base64 of 44": lambda: _word(BASE62 + "+/", 43) + "=",
    **{f"prefix of {n}": lambda n=n: f"{_word(LOWER, n)}_{_word(BASE62, 32)}" for n in (2, 3, 4, 5, 6, 8)},
    **{f"live prefix of {n}": lambda n=n: f"{_word(LOWER, n)}_live_{_word(BASE62, 28)}" for n in (2, 3, 4, 6)},
    **{f"test prefix of {n}": lambda n=n: f"{_word(LOWER, n)}_test_{_word(BASE36, 32)}" for n in (2, 3, 4, 6)},
    **{f"dashed prefix of {n}": lambda n=n: f"{_word(LOWER, n)}-{_word(BASE62, 36)}" for n in (3, 4, 5)},
    **{f"prefix and {n} hex": lambda n=n: f"{_word(LOWER, 4)}_{_word(HEX, n)}" for n in (32, 40, 64)},
    "two parts": lambda: f"{_word(URL_SAFE, 24)}.{_word(URL_SAFE, 40)}",
    "three parts": lambda: f"{_word(BASE62, 24)}.{_word(BASE62, 6)}.{_word(URL_SAFE, 38)}",
    "telegram": lambda: f"{RNG.randrange(10**9, 10**10)}:AA{_word(URL_SAFE, 33)}",
    "discord": lambda: f"MT{_word(BASE62, 24)}.{_word(URL_SAFE, 6)}.{_word(URL_SAFE, 38)}",
    "discord with a second factor": lambda: f"mfa.{_word(URL_SAFE, 84)}",
    "version and word": lambda: f"v1.{_word(BASE62, 40)}",
    "octopus": lambda: f"API-{_word(UPPER36, 26)}",
    "maxmind": lambda: f"{_word(BASE62, 6)}_{_word(BASE62, 29)}_mmk",
}
IN_PROSE = (
    "please use {} for the calls",
    "here is what they sent me: {}",
    "I pasted {} into the form yesterday",
    "{} is the one that works",
    "try `{}` instead of the old one",
)
WITH_A_TELLING_WORD = (
    "the token {} stopped working",
    "the session cookie was {}",
    "Set-Cookie: sessionid={}; Path=/; HttpOnly",
    "Cookie: PHPSESSID={}",
    "curl -b 'sid={}' https://shop.test/",
    "our bot uses {} for now",
    '"{}" is my password now',
)


def _is_hidden(text: str, secret: str) -> bool:
    shown = build_redactor().redact(text)
    return not any(secret[at : at + 12] in shown for at in range(len(secret) - 11))


@pytest.mark.parametrize(
    ("templates", "least"), [(IN_PROSE, 0.90), (WITH_A_TELLING_WORD, 0.93)], ids=["prose", "telling word"]
)
def test_random_words_of_over_fifty_shapes_are_hidden(templates: tuple[str, ...], least: float) -> None:
    tried = [(shape, template, make()) for shape, make in SHAPES.items() for template in templates for _ in range(4)]
    missed = [(shape, template) for shape, template, word in tried if not _is_hidden(template.format(word), word)]

    assert len(SHAPES) >= 50
    assert 1 - len(missed) / len(tried) >= least, missed


@pytest.mark.parametrize("name", ["token", "secret", "api key", "password", "session id", "JSESSIONID"])
def test_hexadecimal_word_after_a_secret_name_is_hidden(name: str) -> None:
    word = _word(HEX, 32)

    assert word not in build_redactor().redact(f"the {name} {word} is still valid")
    assert word not in build_redactor().redact(f"{name}={word}")


def _uuid() -> str:
    return "-".join(_word(HEX, length) for length in (8, 4, 4, 4, 12))


VENDOR_FORMS: dict[str, Callable[[], str]] = {
    **{
        name: lambda length=length: _word(HEX, length)
        for name, length in (
            ("Agora", 32), ("Algolia", 32), ("Amplitude", 32), ("AssemblyAI", 32), ("Bugsnag", 32), ("CircleCI", 40),
            ("Cloudflare", 37), ("Datadog", 32), ("Datadog", 40), ("Deepgram", 40), ("Finicity", 32), ("Flickr", 32),
            ("Infura", 32), ("Iterable", 32), ("KuCoin", 24), ("Linode", 64), ("Mailjet", 32), ("Meilisearch", 64),
            ("Mixpanel", 32), ("Plaid", 30), ("Rollbar", 32), ("Sendbird", 40), ("Sentry", 64), ("SerpApi", 64),
            ("Slack", 32), ("SparkPost", 40), ("Spotify", 32), ("Statuspage", 40), ("Strava", 40), ("Todoist", 40),
            ("Together", 64), ("Trello", 32), ("Twilio", 32),
        )
    },
    **dict.fromkeys(
        ("Codecov", "CoinMarketCap", "Exa", "Heroku", "Opsgenie", "Postmark", "Railway", "Scaleway", "Snyk"),
        _uuid,
    ),
    "Asana": lambda: f"1/{RNG.randrange(10**15, 10**16)}:{_word(HEX, 32)}",
    "Asana of today": lambda: f"2/{RNG.randrange(10**15, 10**16)}/{RNG.randrange(10**15, 10**16)}:{_word(HEX, 32)}",
    "AWS session": lambda: "FwoGZXIvYXdz" + _word(BASE62 + "+/", 200),
    "Axiom": lambda: f"xaat-{_uuid()}",
    "Brave": lambda: "BSA1" + _word(URL_SAFE, 26) + "x",
    "fal": lambda: f"{_uuid()}:{_word(HEX, 32)}",
    "Firebase": lambda: f"{_word(BASE62, 11)}:APA91b{_word(URL_SAFE, 134)}",
    "Gemini": lambda: "AQ.A" + _word(BASE62, 50),
    "GitLab": lambda: "glwt-" + _word(BASE62, 20),
    "GoCardless": lambda: "live_1" + _word(BASE62, 39),
    "Grafana": lambda: "eyJrIjoi" + _word(BASE62, 72),
    "LaunchDarkly": lambda: f"api-{_uuid()}",
    "LaunchDarkly SDK": lambda: f"sdk-{_uuid()}",
    "Mailgun": lambda: f"{_word(HEX, 32)}-{_word(HEX, 8)}-{_word(HEX, 8)}",
    "Razorpay": lambda: "rzp_live_" + _word(BASE62, 14),
    "Scaleway id": lambda: "SCW1" + _word(UPPER36, 16),
    "Stripe of production": lambda: "sk_prod_" + _word(BASE62, 24),
    "Telnyx": lambda: f"KEY{_word(UPPER36, 32)}_{_word(BASE62, 22)}",
    "Trello token": lambda: "ATTA" + _word(HEX, 64) + _word(UPPER36, 8),
    "Twitter": lambda: f"{RNG.randrange(10**18, 10**19)}-A{_word(BASE62, 39)}",
    "Webex": lambda: f"{_word(BASE62, 64)}_P0A1_{_uuid()}",
    "Yandex": lambda: f"t1.{_word(BASE62, 60)}.{_word(BASE62, 86)}",
    "Yandex OAuth": lambda: "y0_" + _word(BASE62, 55),
}  # fmt: skip
OF_VENDORS = (
    "The {vendor} API key is {word} and it expires in May.",
    "Use the {vendor} token {word} for staging.",
    "Please set {word} as the {vendor} secret.",
    "the key for {vendor} ({word}) was leaked",
    "Can you rotate {word}? It is the {vendor} one.",
    "{name}_API_KEY={word}",
    "export {name}_TOKEN={word}",
)


@pytest.mark.parametrize("template", OF_VENDORS)
def test_keys_of_over_sixty_vendors_are_hidden_in_sentences_and_assignments(template: str) -> None:
    passed: list[str] = []
    for vendor, make in VENDOR_FORMS.items():
        word = make()
        name = vendor.split()[0].upper()
        if word in build_redactor().redact(template.format(vendor=vendor, name=name, word=word)):
            passed.append(vendor)

    assert len(VENDOR_FORMS) >= 60
    assert passed == []


@pytest.mark.parametrize("prefix", ["ghp_", "glpat-", "sk-ant-", "xoxb-", "hf_"])
def test_key_repeated_without_a_space_is_hidden_completely(prefix: str) -> None:
    key = prefix + _word(BASE62, 36)

    assert build_redactor().redact(f"use {key}{key} now") == "use ***REDACTED*** now"


@pytest.mark.parametrize(
    "text",
    [
        "the commit 3101debf0c2f1b3e4d5a69788796a5b4c3d2e1f0 broke it",
        '"integrity": "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcgSpIdNs6c5H0NE8XYXysP"',
        "answered toolu_01A09q90qw90lq917835lq9Kx and call_8fJk29sLqPz71mNcT4vX",
        "see https://docs.example.test/document/d/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms/edit",
        "from cryptography import Ed25519PrivateKey and X25519PublicKey",
        "the file 000_2cc300c2bc938fa9xyz.txt is the first one",
        "run 20261115-040225-0a1b2c3d4e5f ended",
        "the Heroku app f81d4fae-7dec-11d0-a765-00a0c91e6bf6 was restarted",
        "Sentry grouped it under 0a1b2c3d4e5f60718293a4b5c6d7e8f9 yesterday",
        "the trace 0a1b2c3d4e5f60718293a4b5c6d7e8f9 in Datadog has the key spans",
        "the Stripe commit 3101debf0c2f1b3e4d5a69788796a5b4c3d2e1f0 renames the key",
        "idempotency key: f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "session f81d4fae-7dec-11d0-a765-00a0c91e6bf6 has a new token",
        "request f81d4fae-7dec-11d0-a765-00a0c91e6bf6 of the Twilio account had no token",
        "gpg --recv-keys A363A499291CBBC940DD62E41F10027AF002F8B0 # release key",
    ],
)
def test_ids_hashes_and_code_names_are_not_hidden(text: str) -> None:
    assert build_redactor().redact(text) is text


def test_at_most_one_of_a_thousand_lines_of_real_code_is_changed() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    redactor = build_redactor()
    lines = changed = 0
    for path in sorted(library.glob("*.py"))[::4]:
        text = path.read_text(encoding="utf-8", errors="replace")
        lines += text.count("\n")
        changed += sum(finding.kind == "random" for finding in redactor.find(text))

    assert lines > 10_000
    assert changed / lines <= 0.001
