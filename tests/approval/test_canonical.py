"""Every argument has one canonical spelling."""

import pytest
from pydantic import JsonValue

from metier.approval.canonical import canonical_arguments, canonical_path, canonical_url, find_value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("src/a.py", "/repo/src/a.py"),
        ("./src//a.py", "/repo/src/a.py"),
        ("src/../../etc/passwd", "/etc/passwd"),
        ("/safe/../etc/passwd", "/etc/passwd"),
        ("//etc/passwd", "/etc/passwd"),
        ("", "/repo"),
        (".", "/repo"),
        ("../repo-old/x", "/repo-old/x"),
        ("src/", "/repo/src"),
        ("/..", "/"),
    ],
)
def test_a_path_is_resolved_below_the_root_without_disk_access(written: str, meant: str) -> None:
    assert canonical_path(written, "/repo") == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("HTTPS://Example.COM", "https://example.com/"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("https://example.com:8443/a", "https://example.com:8443/a"),
        ("http://example.com./a/../b/./c", "http://example.com/b/c"),
        ("http://example.com/%61/%2e%2e/b", "http://example.com/b"),
        ("http://example.com/a%2fb", "http://example.com/a%2Fb"),
        ("http://example.com/docs/", "http://example.com/docs/"),
        ("http://example.com/a?q=1#part", "http://example.com/a?q=1"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://0177.0.0.1/", "http://127.0.0.1/"),
        ("http://[0:0::1]/", "http://[::1]/"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("https://good.example@evil.example/", "unparsed:https://good.example@evil.example/"),
        ("https://good.example\\@evil.example/", "unparsed:https://good.example\\@evil.example/"),
        ("https://exa mple.com/", "unparsed:https://exa mple.com/"),
        ("https:///path", "unparsed:https:///path"),
        ("http://example.com:99999/", "unparsed:http://example.com:99999/"),
        ("http://256.1.1.1/", "unparsed:http://256.1.1.1/"),
        ("http://127.0.0.0x/", "http://127.0.0.0/"),
        ("http://１２７.1/", "http://127.0.0.1/"),
        ("http://127.0.0.1_0/", "http://127.0.0.1_0/"),
        ("http://0b1.example/", "http://0b1.example/"),
        ("http://1_27.0.0.1/", "unparsed:http://1_27.0.0.1/"),
        ("http://0o177.1/", "unparsed:http://0o177.1/"),
        ("http://08.0.0.1/", "unparsed:http://08.0.0.1/"),
        ("http://1.2.3.4.5/", "unparsed:http://1.2.3.4.5/"),
        ("http://[::ffff:127.0.0.1]/", "http://127.0.0.1/"),
        ("http://[0:0:0:0:0:ffff:7f00:1]/", "http://127.0.0.1/"),
        ("http://[fe80::1%25eth0]/", "http://[fe80::1]/"),
    ],
)
def test_a_url_has_one_canonical_spelling_and_an_ambiguous_url_has_none(written: str, meant: str) -> None:
    assert canonical_url(written) == meant


def test_paths_and_urls_are_found_by_the_name_of_the_argument_at_any_depth() -> None:
    arguments = canonical_arguments(
        {
            "file_path": "a/../b",
            "paths": ["./x", "/y/.."],
            "edits": [{"path": "z/"}],
            "target": "HTTP://A.example",
            "content": "a/../b",
            "count": 3,
        },
        "/repo",
    )

    assert arguments == {
        "file_path": "/repo/b",
        "paths": ["/repo/x", "/"],
        "edits": [{"path": "/repo/z"}],
        "target": "http://a.example/",
        "content": "a/../b",
        "count": 3,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a.b", 1),
        ("a.c.0.d", "x"),
        ("a.c.1", None),
        ("a.x", None),
        ("url.host", "docs.example"),
        ("url.scheme", "https"),
        ("url.port", 443),
        ("url.path", "/x"),
        ("url.user", None),
        ("a.b.c", None),
        ("dotted.key", "whole"),
    ],
)
def test_a_dotted_key_finds_nested_values_and_parts_of_a_url(key: str, value: object) -> None:
    arguments: dict[str, JsonValue] = {
        "a": {"b": 1, "c": [{"d": "x"}]},
        "url": "https://docs.example/x",
        "dotted.key": "whole",
    }

    assert find_value(arguments, key) == value
