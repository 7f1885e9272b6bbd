"""The source of a skill: parses `<git-url|path>[@ref][#subdir]`. Pure: no disk and no network.

A secret in an address is separated here. It is used for one fetch and never stored or printed.
"""

import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import Struct

from metier.errors import UsageError

_SCHEMES = ("https", "http", "ssh", "file")
# Two letters at least: one letter before a colon is a Windows drive.
_SCP = re.compile(r"(?P<host>(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9._-]{2,}|\[[0-9a-fA-F:]+\]):(?P<path>[^:].*)", re.DOTALL)
# For `name::address`, Git starts the program `git-remote-name`; `ext::` runs any command.
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
_REF_FORBIDDEN = re.compile(r"[ ~^:?*\[\\\x00-\x1f\x7f]|\.\.|@\{|//|\.lock(?:/|$)|(?:^|/)\.|[/.]$|^/")
MCP = "mcp:"
"""Prefix of a source on an MCP server: `mcp:SERVER/SKILL`."""
_EXAMPLE = "For example https://example.org/team/skills.git@v1.2.0#skills/notes, or ./my-skill"


# A dataclass, not a Struct: its `repr` must not show the secret.
@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    url: str
    """Address without a password or token."""
    ref: str | None = None
    """A branch, a tag or 40 hexadecimal digits; None for the default branch."""
    subdir: str = ""
    """POSIX path inside the repository; empty for its root."""
    secret: str = field(default="", repr=False)
    """`user:token` from the address."""

    def describe(self) -> str:
        ref = f"@{self.ref}" if self.ref else ""
        return self.url + ref + (f"#{self.subdir}" if self.subdir else "")


class FolderSource(Struct, frozen=True, kw_only=True):
    path: Path

    def describe(self) -> str:
        return str(self.path)


class McpSource(Struct, frozen=True, kw_only=True):
    """A skill on an MCP server (SEP-2640)."""

    server: str
    """The server's name in the workspace, not its own name."""
    skill: str
    """Name of the skill, or address of its `SKILL.md`."""

    def describe(self) -> str:
        return f"{MCP}{self.server}/{self.skill}"


type InstallSource = GitSource | FolderSource | McpSource


def parse_source(text: str, *, allow_file: bool = False) -> InstallSource:
    """Parse a source. Raises `UsageError` for a dangerous or invalid address."""
    _check_text(text)
    if text.startswith(MCP):
        return _parse_served(text)
    address, _, subdir = text.partition("#")
    if "#" in text:
        _check_subdir(subdir)
    if "://" in address:
        return _parse_url(address, subdir=subdir.strip("/"), allow_file=allow_file)
    scp = _SCP.fullmatch(address)
    if scp and not _WINDOWS_PATH.match(address):
        path, ref = _split_ref(scp["path"])
        if scp["host"].startswith("-") or path.startswith("-"):
            _refuse(text, "it looks like an option")
        return GitSource(url=f"{scp['host']}:{path}", ref=ref, subdir=subdir.strip("/"))
    return FolderSource(path=Path(address).expanduser() / subdir)


def _parse_served(text: str) -> McpSource:
    server, _, skill = text.removeprefix(MCP).partition("/")
    if not server or not skill or len(text) > 2_000:
        raise UsageError(f"{text[:200]!r} names no skill of an MCP server", hint="Write it as mcp:SERVER/SKILL")
    return McpSource(server=server, skill=skill)


def check_ref(ref: str) -> None:
    """Check the rules of `git check-ref-format`, and reject options."""
    if not ref or ref.startswith("-") or ref == "@" or _REF_FORBIDDEN.search(ref):
        raise UsageError(f"{ref!r} is not the name of a branch, tag or commit")


def _check_text(text: str) -> None:
    if not text.strip():
        raise UsageError("The source is empty", hint=_EXAMPLE)
    # The user confirms the address that is shown; with invisible characters it is not the one that is fetched.
    hidden = next((char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")), None)
    if hidden is not None:
        _refuse("…", f"it holds the invisible character U+{ord(hidden):04X}")
    if text != text.strip():
        _refuse(text, "it begins or ends with a blank")
    if text.startswith("-"):
        _refuse(text, "it looks like an option")
    if _HELPER.match(text):
        _refuse(text.partition("::")[0] + "::…", "it names a git helper program")


def _parse_url(address: str, *, subdir: str, allow_file: bool) -> GitSource:
    scheme = address.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        _refuse(f"{scheme}://…", f"{scheme!r} is none of {', '.join(_SCHEMES)}")
    if scheme == "file" and not allow_file:
        raise UsageError("Address with 'file://' is refused", hint="Add --allow-file if you trust that repository")
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError("The address is not a URL", hint=_EXAMPLE) from error
    _check_host(scheme, host)
    host = _show_plainly(host, address)
    path, ref = _split_ref(parts.path)
    if path in ("", "/") or unquote(path).startswith("/-"):
        _refuse(f"{scheme}://{host}{path}", "it has no path to a repository")
    user, secret = _split_user(scheme, parts.username, parts.password)
    place = f"[{host}]" if ":" in host else host
    authority = f"{user}@{place}" if user else place
    authority += f":{port}" if port else ""
    url = urlunsplit((scheme, authority, path, parts.query, ""))
    return GitSource(url=url, ref=ref, subdir=subdir, secret=secret)


def _check_host(scheme: str, host: str) -> None:
    if scheme == "file":
        if host not in ("", "localhost"):
            _refuse(f"file://{host}/…", "it names another machine")
    # Git gave the host of `ssh://-oProxyCommand=…` to ssh as an option (CVE-2017-1000117), also if it was quoted by
    # `%2d`.
    elif not host or unquote(host).startswith("-"):
        _refuse(f"{scheme}://{host}", "it has no usable host name")


def _show_plainly(host: str, address: str) -> str:
    """Return a host in ASCII form, so that letters of other alphabets can't pass as Latin ones."""
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        _refuse(address, "its host is not a name")


def _split_user(scheme: str, user: str | None, password: str | None) -> tuple[str, str]:
    """Split the user from an address. Over ssh the user name is part of the address; over http it is a secret."""
    if scheme == "ssh":
        if password:
            raise UsageError("An ssh address cannot hold a password", hint="Use a key and ssh-agent")
        if user and unquote(user).startswith("-"):
            _refuse("ssh://-…", "it looks like an option")
        return user or "", ""
    if not user and not password:
        return "", ""
    if scheme != "https":
        raise UsageError(f"A password in a {scheme}:// address would travel in the clear", hint="Use https://")
    return "", f"{unquote(user or '')}:{unquote(password or '')}"


def _split_ref(path: str) -> tuple[str, str | None]:
    """Split the ref at the first `@` that does not start a path component: `/@scope/repo@pkg@1.0` has `pkg@1.0`."""
    match = re.search(r"(?<=[^/])@", path)
    if match is None:
        return path, None
    ref = path[match.end() :]
    check_ref(ref)
    return path[: match.start()], ref


def _check_subdir(subdir: str) -> None:
    parts = subdir.strip("/").split("/")
    if subdir.startswith("/") or "\\" in subdir or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"{subdir!r} is not a folder inside the repository", hint=_EXAMPLE)


def _refuse(text: str, why: str) -> NoReturn:
    raise UsageError(f"Source {text!r} is refused: {why}", hint=_EXAMPLE)
