import pytest

from metier.errors import UsageError
from metier.skills.source import FolderSource, GitSource, parse_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("https://example.org/team/notes.git", ("https://example.org/team/notes.git", None, "")),
        (
            "https://example.org/team/notes@v1.2#skills/notes",
            ("https://example.org/team/notes", "v1.2", "skills/notes"),
        ),
        ("https://example.org/team/notes@feature/x", ("https://example.org/team/notes", "feature/x", "")),
        ("https://example.org/@scope/mono@pkg@1.0", ("https://example.org/@scope/mono", "pkg@1.0", "")),
        ("https://[::1]:8443/notes.git", ("https://[::1]:8443/notes.git", None, "")),
        ("ssh://git@example.org:2222/notes.git@main", ("ssh://git@example.org:2222/notes.git", "main", "")),
        ("git@example.org:team/notes.git", ("git@example.org:team/notes.git", None, "")),
        (f"git@example.org:team/notes.git@{COMMIT}#a", ("git@example.org:team/notes.git", COMMIT, "a")),
        ("https://gi\u0442hub.com/notes", ("https://xn--gihub-8ye.com/notes", None, "")),
    ],
)
def test_source_url_is_parsed(text: str, parts: tuple[str, str | None, str]) -> None:
    url, ref, subdir = parts

    assert parse_source(text) == GitSource(url=url, ref=ref, subdir=subdir)


@pytest.mark.parametrize("text", ["./notes", "../notes", "/srv/notes", "notes", "~/notes", "C:/skills/notes", "a@b/c"])
def test_other_sources_are_folders(text: str) -> None:
    assert isinstance(parse_source(text), FolderSource)


def test_secret_is_removed_from_a_url_and_not_shown() -> None:
    token = "tok" + "en-123"

    source = parse_source(f"https://ada:{token}@example.org/notes.git@main")

    assert isinstance(source, GitSource)
    assert source.secret == f"ada:{token}"
    assert source.url == "https://example.org/notes.git"
    assert token not in repr(source) + source.describe()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "ext::sh -c id",
        "fd::17",
        "EXT::sh",
        "transport-helper::x",
        "-upload-pack=touch",
        "--upload-pack=touch /x",
        "https://-oProxyCommand=x/notes",
        "ssh://-oProxyCommand=x/notes",
        "ssh://-l@example.org/notes",
        "-oProxyCommand=x:notes",
        "git@example.org:-x",
        "https://example.org/",
        "https:///notes",
        "file:///srv/notes",
        "git://example.org/notes",
        "FILE:///srv/notes",
        "ftp://example.org/notes",
        "javascript://example.org/notes",
        "https://example.org/no\ntes",
        "https://example.org/no\x00tes",
        "https://example.org/no\u202etes",
        "https://example.org/notes ",
        "https://example.org/notes@-x",
        "https://example.org/notes@a..b",
        "https://example.org/notes@a b",
        "https://example.org/notes@a:b",
        "https://example.org/notes@",
        "https://example.org/notes#../x",
        "https://example.org/notes#/x",
        "https://example.org/notes#a//b",
        "https://example.org/notes#a\\b",
        "https://example.org/notes#",
        "https://example.org:port/notes",
        "ssh://git:word@example.org/notes",
        "http://ada:word@example.org/notes",
    ],
)
def test_dangerous_or_invalid_url_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_source(text)


def test_file_url_is_accepted_only_on_request() -> None:
    assert parse_source("file:///srv/notes", allow_file=True) == GitSource(url="file:///srv/notes")
    with pytest.raises(UsageError):
        parse_source("file://other.example.org/srv/notes", allow_file=True)
