"""Arguments that each matcher accepts and rejects, canonical and typed."""

import json

import pytest
from pydantic import JsonValue
from verdicts import judge, read_scope

OPEN = "https://example.com/docs"

CLIMBS = (
    "..%2f", "..%2F", "%2e%2e/", "%2e%2e%2f", ".%2e/", "..%252f", "%252e%252e/", "%252e%252e%252f",
    "%25252e%25252e%25252f",
    "..%5c", "%2e%2e%5c", "..%255c", "..;/", "..;x=1/", "%2e%2e;/", "..%c0%af", "%c0%ae%c0%ae/", "..%e0%80%af",
    "%ef%bc%8e%ef%bc%8e/", "\uff0e\uff0e/", ".%00./", ".%e2%80%8b./", "..%u002f",
)  # fmt: skip
"""Ways to write `../` that some server understands, and that are not `../` as they stand."""

MATCHING: list[tuple[str, str, JsonValue]] = [
    ("count", "equals: 1", 1),
    ("count", "equals: 1", 1.0),
    ("count", "equals: '1'", "1"),
    ("flag", "equals: true", True),
    ("flag", "equals: 'true'", "true"),
    ("none", "equals: null", None),
    ("word", "equals: yes", "yes"),
    ("word", "in: [a, 2, false]", 2),
    ("word", "in: [a, 2, false]", False),
    ("word", "startsWith: ab", "abc"),
    ("word", r"matches: 'a+\d'", "aaa1"),
    ("word", "contains: b", "abc"),
    ("list", "contains: b", ["a", "b"]),
    ("list", "contains: 2", [1, 2]),
    ("list", "containsAll: [a, b]", ["b", "c", "a"]),
    ("word", "containsAll: [a, b]", "cab"),
    ("word", "anyOf: [{equals: a}, {startsWith: b}]", "bc"),
    ("word", "allOf: [{contains: a}, {contains: b}]", "cab"),
    ("word", "{startsWith: a, contains: b}", "acb"),
    ("path", "startsWith: src", "src/a.py"),
    ("path", "startsWith: src", "src"),
    ("path", "startsWith: src/", "./src//a.py"),
    ("path", "startsWith: src/", "/repo/src/a.py"),
    ("path", "startsWith: /repo/", "a.py"),
    ("path", "startsWith: /", "a.py"),
    ("path", "startsWith: .", "deep/a.py"),
    ("path", "startsWith: /safe/", "/safe/x"),
    ("path", "equals: ./a.py", "x/../a.py"),
    ("path", "in: [a.py, b.py]", "/repo/b.py"),
    ("path", r"matches: 'src/.*\.py'", "src/a.py"),
    ("path", r"matches: '/repo/src/.*\.py'", "src/a.py"),
    ("url", f"startsWith: {OPEN}", "HTTPS://EXAMPLE.com:443/docs"),
    ("url", f"startsWith: {OPEN}", "https://example.com/docs/a"),
    ("url", f"startsWith: {OPEN}", "https://example.com/docs?q=1"),
    ("url", "startsWith: https://example.com", "https://example.com/anything"),
    ("url", f"startsWith: {OPEN}", "https://example.com/docs/a%2fb%20c;v=1/..x"),
    ("url", f"startsWith: {OPEN}", "https://example.com/docs/a?from=..%2fb"),
    ("url.path", "startsWith: /docs", "https://example.com/docs/a%20b"),
    ("path", "startsWith: src", "src/..%2fa"),
    ("word", "matches: '(?i)ab c'", "AB C"),
    ("word", "matches: '(?i:ab) c'", "aB c"),
    ("word", "matches: 'a(?i)B|x'", "ab"),
    ("word", "matches: '(?s)a.b'", "a\nb"),
    ("url.host", "in: [example.com]", "https://EXAMPLE.com/x"),
    ("a.b.c", "equals: 1", {"b": {"c": 1}}),
]

MISSING: list[tuple[str, str, JsonValue]] = [
    ("count", "equals: 1", "1"),
    ("count", "equals: 1", True),
    ("count", "equals: '1'", 1),
    ("flag", "equals: true", 1),
    ("flag", "equals: true", "true"),
    ("none", "equals: null", "null"),
    ("word", "in: [1]", True),
    ("word", "startsWith: ab", "a"),
    ("word", "startsWith: ab", ["abc"]),
    ("word", "matches: a", "ab"),
    ("word", "matches: a", "ba"),
    ("word", "matches: a.b", "a\nb"),
    ("word", "matches: '(?m)^ab$'", "ab\ncd"),
    ("word", "matches: '(?i)ab'", "ABC"),
    ("word", "matches: 'a(?i)B|x'", "AB"),
    ("word", "contains: b", "ac"),
    ("word", "contains: 1", "1"),
    ("list", "containsAll: [a, b]", ["a"]),
    ("word", "anyOf: [{equals: a}, {startsWith: b}]", "c"),
    ("word", "allOf: [{contains: a}, {contains: b}]", "a"),
    ("path", "startsWith: src", "src-old/a.py"),
    ("path", "startsWith: src/", "src/../../etc/passwd"),
    ("path", "startsWith: /safe/", "/safe/../etc/passwd"),
    ("path", "startsWith: /safe", "/safety/x"),
    ("path", "startsWith: .", "../x"),
    ("path", "startsWith: src", "src\x00/../../x/../../etc"),
    ("url", f"startsWith: {OPEN}", "https://example.com/docs-private"),
    ("url", f"startsWith: {OPEN}", "https://example.com/docs/../admin"),
    ("url", f"startsWith: {OPEN}", "https://example.com/docs/%2e%2e/admin"),
    *(("url", f"startsWith: {OPEN}", f"{OPEN}/{climb}admin") for climb in CLIMBS),
    *(("url", f"startsWith: {OPEN}/", f"{OPEN}/a/{climb}{climb}admin") for climb in CLIMBS),
    *(("url", f"matches: '{OPEN}/.*'", f"{OPEN}/{climb}admin") for climb in CLIMBS),
    *(("target", f"contains: {OPEN}/", f"{OPEN}/{climb}admin") for climb in CLIMBS),
    ("url.path", "startsWith: /docs", f"{OPEN}/..%2fadmin"),
    ("url", "startsWith: https://example.com", "https://example.com.evil.example/"),
    ("url", "startsWith: https://example.com", "https://example.com@evil.example/"),
    ("url.host", "in: [example.com]", "https://example.com@evil.example/"),
    ("a.b.c", "equals: 1", {"b": 1}),
]


def build_case(key: str, matcher: str, value: JsonValue) -> tuple[str, dict[str, JsonValue]]:
    flow = matcher if matcher.startswith("{") else f"{{{matcher}}}"
    text = f"rules:\n  - tool: Read\n    allow: true\n    when: {{{json.dumps(key)}: {flow}}}\n"
    return text, {key.partition(".")[0]: value}


@pytest.mark.parametrize(("key", "matcher", "value"), MATCHING)
def test_a_matcher_matches_its_values(key: str, matcher: str, value: JsonValue) -> None:
    text, arguments = build_case(key, matcher, value)

    assert judge([read_scope(text)], "Read", arguments).verdict.decision == "allow"


@pytest.mark.parametrize(("key", "matcher", "value"), MISSING)
def test_a_matcher_ignores_similar_values(key: str, matcher: str, value: JsonValue) -> None:
    text, arguments = build_case(key, matcher, value)

    assert judge([read_scope(text)], "Read", arguments).verdict.decision == "ask"


def test_a_rule_for_a_missing_argument_does_not_match() -> None:
    scope = read_scope("rules:\n  - tool: Read\n    allow: false\n    when: {limit: {equals: null}}\n")

    assert judge([scope], "Read", {"path": "a"}).outcomes[0].decision is None


@pytest.mark.parametrize("path", [".env", ".env.local", "./.env", "a/../.env"])
def test_the_prefix_of_a_deny_rule_is_interpreted_broadly(path: str) -> None:
    scope = read_scope("rules:\n  - tool: Read\n    allow: false\n    when: {path: {startsWith: .env}}\n")

    assert judge([scope], "Read", {"path": path}, profile="permissive").verdict.decision == "deny"


@pytest.mark.parametrize("climb", CLIMBS)
def test_a_deny_rule_covers_urls_that_a_server_may_decode_to_its_pattern(climb: str) -> None:
    scope = read_scope(
        "rules:\n  - tool: WebFetch\n    allow: false\n    when: {url: {startsWith: 'https://example.com/admin'}}\n"
    )

    for url in (f"{OPEN}/{climb}admin/x", f"{OPEN}/a/{climb}{climb}admin"):
        assert judge([scope], "WebFetch", {"url": url}, profile="permissive").verdict.decision == "deny", url


@pytest.mark.parametrize("flag", ["(?i)", "(?is)", "(?i)(?s)"])
def test_a_deny_rule_with_a_regex_flag_ignores_case(flag: str) -> None:
    scope = read_scope(
        f"rules:\n  - tool: Bash\n    allow: false\n    when: {{command: {{matches: '{flag}git push.*'}}}}\n"
    )

    assert judge([scope], "Bash", {"command": "git PUSH origin"}, profile="permissive").verdict.decision == "deny"


def test_a_regular_expression_takes_linear_time_on_hostile_text() -> None:
    scope = read_scope("rules:\n  - tool: Read\n    allow: true\n    when: {word: {matches: '(a|aa|a?)*b'}}\n")

    assert judge([scope], "Read", {"word": "a" * 200_000}).verdict.decision == "ask"
