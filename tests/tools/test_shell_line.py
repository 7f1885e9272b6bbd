"""Parsing shell lines: accepted ones mean the same to bash, others are named."""

import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from example_counts import examples
from metier.tools.shell.line import (
    NotUnderstood,
    ShellLine,
    canonical_command,
    expand_pattern,
    has_pattern,
    parse_line,
    quote_word,
)

BASH = shutil.which("bash")

LISTENER = r"""
command_not_found_handle() { builtin printf '%s\0' "$#" "$@" >&3; }
while IFS= read -r -d '' text; do eval -- "$text" >/dev/null 2>&1 </dev/null; builtin printf 'END\0' >&3; done
"""
"""Says for every program that a text calls how many words it was given, and which."""

FRAGMENTS = (
    "git", "status", "prog", "a", "-x", "--y=z", "'a b'", '"c d"', "'a\nb'", "a#b", "#", "# c", "~", "~/x", "HEAD~1",
    "{}", "-I{}", "a{}b", "{},{}",
    "a~~", "^~", "@{0}", "x@{1}", "a@{b},c@{d}", "{1}", "{a,b}", "{1..3}", "x=~", "x=1", "x:~", "|", "||", "&&", ";",
    "&", ";;", "|&", ">", "<", "2>&1", "1>&2", ">&2", ">/dev/null", "2>/dev/null", "> /dev/null", "&>/dev/null",
    "12>&1", "3>&1", "2>&-", " ", " ", " ", "\t", "\n", "\\", "\\\n", "$x", "$", "`", "*", "?", "[a]", "!", "(", ")",
    "''", '""', "\xe9", "-", "--", "%", "^", "2", "12", ":", "it's", "if", "time", "'$x'", '"`"', '"$x"', '"\\"',
    "'\\'", '"!"', "*.md", "src/*", "[a-z]*", "[!a-z]*",
    "?????", "-*", "--x=*", "'*'*", "''~", "'@'{0}", "]", "}", ",", "+", "+(a)", "@", "=", "a=b=c", "\r", "\x01",
)  # fmt: skip


class Bash:
    """One bash process for many texts."""

    def __init__(self) -> None:
        readable, writable = os.pipe()
        assert BASH is not None
        self._process = subprocess.Popen(
            [BASH, "--noprofile", "--norc", "-c", f"exec 3>&{writable}\n{LISTENER}"],
            stdin=subprocess.PIPE,
            pass_fds=[writable],
            env={"PATH": "/nonexistent", "LANG": "C"},
        )
        os.close(writable)
        self._readable = readable
        self._rest = b""

    def split(self, text: str) -> list[tuple[str, ...]]:
        """Return the words of every program called in the text, in any order."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\0")
        self._process.stdin.flush()
        found: list[tuple[str, ...]] = []
        while (word := self._read_word()) != "END":
            found.append(tuple(self._read_word() for _ in range(int(word))))
        return sorted(found)

    def _read_word(self) -> str:
        end = time.monotonic() + 60
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._readable], [], [], max(0, end - time.monotonic()))
            assert ready, "bash does not answer"
            data = os.read(self._readable, 65536)
            assert data, "bash is gone"
            self._rest += data
        word, _, self._rest = self._rest.partition(b"\0")
        return word.decode()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        os.close(self._readable)


@pytest.fixture(scope="module")
def bash() -> Iterator[Bash]:
    if BASH is None:
        pytest.skip("there is no bash")
    started = Bash()
    yield started
    started.close()


@pytest.fixture(scope="module")
def builtins() -> frozenset[str]:
    if BASH is None:
        pytest.skip("there is no bash")
    return frozenset(
        subprocess.run([BASH, "-c", "compgen -bk"], capture_output=True, text=True, check=True).stdout.split()
    )


def run_by_us(line: ShellLine) -> list[tuple[str, ...]]:
    """Return the calls if every program succeeded."""
    return sorted(
        tuple(words for word in command.argv for words in (expand_pattern(word, ".") if has_pattern(word) else [word]))
        for pipeline in line.pipelines
        if pipeline.connector != "||"
        for command in pipeline.commands
    )


@given(
    st.one_of(
        st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join),
        st.lists(st.sampled_from(FRAGMENTS), max_size=8).map(lambda words: "prog " + " ".join(words)),
        st.text(st.sampled_from("ab-'\"~#{}@=^: ;|&><12\t\n/dev nul!$\\*"), max_size=20).map(
            lambda text: "prog " + text
        ),
    )
)
@example("prog a@{b},c@{d}")
@example("prog x2>&1")
@example("prog 2>&1 x >/dev/null y")
@example("prog ''~ ''#a a''#b")
@example("a && b || c; d | e 'f g'")
@settings(max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bash_splits_accepted_lines_into_the_same_words(bash: Bash, builtins: frozenset[str], text: str) -> None:
    line = parse_line(text)
    if isinstance(line, NotUnderstood):
        return
    if any(command.argv[0] in builtins or "/" in command.argv[0] or command.inputs for command in line.commands):
        return

    assert bash.split(text) == run_by_us(line)
    assert bash.split(line.render()) == run_by_us(line)
    assert parse_line(line.render()) == line


@given(
    st.lists(st.text(st.characters(min_codepoint=9, max_codepoint=126, exclude_characters="\r\x0b\x0c"), max_size=12))
)
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_quoted_words_survive_bash(bash: Bash, words: list[str]) -> None:
    words = [word for word in words if all(letter in "\t\n" or letter >= " " for letter in word)]
    text = " ".join(["prog", *(quote_word(word) for word in words)])

    assert bash.split(text) == [("prog", *words)]
    line = parse_line(text)
    assert isinstance(line, ShellLine)
    assert line.commands[0].argv == ("prog", *words)


@given(st.text(max_size=200))
def test_parsing_does_not_raise_and_returns_the_reason(text: str) -> None:
    line = parse_line(text)

    assert isinstance(line, ShellLine) or line.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo $SECRET", "an expansion ('$')"),
        ('basename "$OTHER"', "an expansion ('$')"),
        ("ls $HOME/*", "a file pattern with a variable"),
        ("echo `x`", "a command substitution"),
        ("a\nb", "more than one line"),
        ("a\\ b", "a backslash"),
        ("a < *", "an input by a file pattern"),
        ("a < < b", "an input from nowhere ('<')"),
        ("ls ~", "a home folder ('~')"),
        ("a > b", "an output to a file ('>')"),
        ("a <<b", "an input from elsewhere ('<')"),
        ("a & b", "a background job ('&')"),
        ("(a)", "a subshell ('(')"),
        ("a # b", "a comment"),
        ("! a", "a negation ('!')"),
        ("a 'b", "a quote that is not closed, or what cannot stand in it"),
        ("caf\u00e9", "the character '\u00e9', which is not ASCII"),
        ("a\x01", "a control character"),
        ("A=1 b", "'A=1' as the name of a program"),
        ("if a", "the keyword 'if'"),
        ("a &&", "no command where one must stand"),
        ("", "no command where one must stand"),
        ("a;" * 51, "more than 50 commands"),
        ("a" * 20_000, "more than 16384 characters"),
    ],
)
def test_unsupported_syntax_is_named(text: str, reason: str) -> None:
    assert parse_line(text) == NotUnderstood(reason)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  git   status\n", "git status"),
        ("git log --format='%h %s'", "git log '--format=%h %s'"),
        ('echo "it\'s"', "echo 'it'\"'\"'s'"),
        ("a|b&&c;d||e;", "a | b && c; d || e"),
        ("x  > /dev/null 2>&1", "x >/dev/null 2>&1"),
        ("echo $x", "echo $x"),
    ],
)
def test_a_line_has_one_canonical_spelling(text: str, canonical: str) -> None:
    assert canonical_command(text) == canonical
    assert canonical_command(canonical) == canonical


def test_a_long_hostile_line_is_parsed_fast() -> None:
    for text in ("a" * 16_000 + "(", "'a'" * 5_000 + "(", "a 'b" * 3_000, "a " * 8_000 + "$", '"' * 16_000):
        started = time.process_time()
        parse_line(text)
        assert time.process_time() - started < 30
