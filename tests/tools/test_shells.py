"""Command lines on each platform: words are kept, and nothing escapes its quotes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metier.errors import ToolFailed
from metier.tools.shell.bash import PosixShell, PowerShell, choose_shell, quote_powershell, render_powershell
from metier.tools.shell.line import ShellLine, parse_line


def read(text: str) -> ShellLine:
    line = parse_line(text)
    assert isinstance(line, ShellLine)
    return line


def test_each_platform_has_a_default_shell() -> None:
    assert choose_shell("linux", linux="/bin/bash", windows="pwsh") == PosixShell("/bin/bash")
    assert choose_shell("darwin", linux="/bin/zsh", windows="pwsh") == PosixShell("/bin/zsh")
    assert choose_shell("win32", linux="/bin/bash", windows="pwsh.exe") == PowerShell("pwsh.exe")


def test_text_is_passed_to_the_shell_as_one_argument() -> None:
    text = "echo \"$HOME\" 'a b' `x`; y"

    program, login, *_, path, last = PosixShell().run_text(text, path="/bin:/b c")
    assert (program, login, path, last) == ("/bin/bash", "-lc", "/bin:/b c", text)
    assert PowerShell().run_text(text, path="") == ["pwsh", "-NoProfile", "-Command", text]


@pytest.mark.parametrize("shell", [PosixShell(), PowerShell()])
def test_a_single_command_is_run_without_any_shell(shell: PosixShell | PowerShell) -> None:
    assert shell.run_line(read("git log '--format=%h $x' \"a b\"")) == ["git", "log", "--format=%h $x", "a b"]


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("git status | head -5", "& 'git' 'status' | & 'head' '-5'"),
        ("a && b || c; d", "& 'a' && & 'b' || & 'c'; & 'd'"),
        ("cd 'a b' && ls", "Set-Location -LiteralPath 'a b' && & 'ls'"),
        ("a '$x' '`y`' \"it's\" '%z%'", "& 'a' '$x' '`y`' 'it''s' '%z%'"),
        ("a 2>&1 >/dev/null", "& 'a' 2>&1 >$null"),
        ("a 2>/dev/null &>/dev/null >&1", "& 'a' 2>$null *>$null"),
        ("a -- --% ''", "& 'a' '--' '--%' ''"),
    ],
)
def test_a_line_is_quoted_word_for_word_for_powershell(text: str, rendered: str) -> None:
    assert render_powershell(read(text)) == rendered


def test_a_redirection_unsupported_by_powershell_is_rejected() -> None:
    with pytest.raises(ToolFailed, match="no redirection"):
        render_powershell(read("a >&2"))


def unquote_powershell(literal: str) -> str:
    """Unquote like PowerShell's single-quoted literals: any of its quotes ends it, two of them are one."""
    quotes = "'\u2018\u2019\u201a\u201b"
    assert literal[0] in quotes
    assert literal[-1] in quotes
    body, found, place = literal[1:-1], "", 0
    while place < len(body):
        if body[place] in quotes:
            assert place + 1 < len(body)
            assert body[place + 1] in quotes
            place += 1
        found += body[place]
        place += 1
    return found


@given(
    st.text(st.one_of(st.sampled_from("'\"$`\\;|&(){}@#%\u2018\u2019\u201a\u201b \n"), st.characters()), max_size=30)
)
def test_no_text_escapes_from_a_powershell_literal(word: str) -> None:
    assert unquote_powershell(quote_powershell(word)) == word
