# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Search the text files of a folder for key words or patterns; rank the files and cut out snippets with line numbers.

Reads only, follows no symbolic link, and goes on past whatever cannot be read. Standard library only. With --json
nothing but one JSON object goes to stdout.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

IGNORED_FOLDERS = frozenset(
    ".git .hg .svn .jj node_modules bower_components .venv venv .tox .nox __pycache__ .mypy_cache .ruff_cache "
    ".pytest_cache .hypothesis .gradle .idea .terraform .next .nuxt .cache .eggs target dist build".split()
)
MOST_SKIPPED = 100
LONGEST_LINE = 5_000
LONGEST_SHOWN = 240
STOP_WORDS = frozenset(
    "a about all also an and any are as ask at be been but by can could do does each every extract file files "
    "find first folder for from get give had has have how i if in into is it its keyword keywords list look make "
    "me mention mentions my of on or our out please project report search should show so some than that the their "
    "them then there these they this those to up use using was we were what when where which who why will with "
    "workspace would you your write draft summarize summarise summary inventory checklist build everything "
    "anything related lines".split()
)


@dataclass(slots=True)
class Source:
    """The readable text files under a root, and what was passed over on the way."""

    root: str
    ignore: list[str]
    max_bytes: int
    max_files: int
    deadline: float
    read: int = 0
    skipped: list[dict[str, str]] = field(default_factory=list)
    truncated: bool = False

    def skip(self, path: str, reason: str) -> None:
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append({"path": show(os.path.relpath(path, self.root)), "reason": reason})

    def files(self) -> Iterator[tuple[str, str]]:
        """(path to show, text) of every text file, in a fixed order."""
        if os.path.isfile(self.root):
            path, self.root = self.root, os.path.dirname(self.root)
            yield from self.load(path)
            return
        for folder, names, files in os.walk(self.root, onerror=lambda e: self.skip(str(e.filename), str(e.strerror))):
            names[:] = sorted(name for name in names if not self.ignores(folder, name, folder_like=True))
            for name in sorted(files):
                if self.ignores(folder, name, folder_like=False):
                    continue
                if self.read >= self.max_files or time.monotonic() > self.deadline:
                    self.truncated = True
                    return
                yield from self.load(os.path.join(folder, name))

    def ignores(self, folder: str, name: str, *, folder_like: bool) -> bool:
        path = os.path.join(folder, name)
        relative = os.path.relpath(path, self.root).replace(os.sep, "/")
        made = name in IGNORED_FOLDERS or (name == "runs" and os.path.exists(f"{path}/state.db"))
        return (folder_like and made) or any(fnmatch(relative, glob) or fnmatch(name, glob) for glob in self.ignore)

    def load(self, path: str) -> Iterator[tuple[str, str]]:
        """The text of one regular file; links, binary and large files are passed over."""
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                return
            if status.st_size > self.max_bytes:
                self.skip(path, f"larger than {self.max_bytes} bytes")
                return
            with open(path, "rb") as stream:
                data = stream.read(self.max_bytes)
        except OSError as error:
            self.skip(path, error.strerror or type(error).__name__)
            return
        if (text := decode(data)) is not None:
            self.read += 1
            yield show(os.path.relpath(path, self.root)), text


def decode(data: bytes) -> str | None:
    """Text in UTF-8 or UTF-16, or in Latin-1 when it is neither; None for binary data."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def lines_of(text: str) -> list[str]:
    """Lines as an editor counts them."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def show(path: str) -> str:
    """A path that is safe to print and to put into JSON: undecodable bytes and control characters are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def join_values(arguments: list[str], names: tuple[str, ...]) -> list[str]:
    """Bind the word after an option to it, so that a value may start with a dash."""
    words = iter(arguments)
    return [f"{word}={next(words, '')}" if word in names else word for word in words]


def add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", default=".", help="a folder or one file (default: the current folder)")
    parser.add_argument("--ignore", action="append", default=[], metavar="GLOB", help="leave these out (repeatable)")
    parser.add_argument(
        "--max-bytes", type=int, default=4_000_000, help="pass over larger files (default: %(default)s)"
    )
    parser.add_argument("--max-files", type=int, default=20_000, help="stop after so many (default: %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=40, help="stop reading then (default: %(default)s)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object instead of text")


def open_source(options: argparse.Namespace) -> Source | None:
    root = os.path.realpath(os.path.expanduser(options.root or "."))
    if not os.path.exists(root):
        print(f"error: '{show(root)}' does not exist", file=sys.stderr)
        return None
    deadline = time.monotonic() + options.max_seconds
    return Source(root, options.ignore, max(1, options.max_bytes), max(1, options.max_files), deadline)


def use_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that is searched for: a word as it is shown, and the pattern that finds it."""

    shown: str
    pattern: re.Pattern[str]


@dataclass(slots=True)
class Found:
    """The hits in one file: line number to the terms found there, best lines first when snippets are cut."""

    path: str
    lines: list[str]
    hits: dict[int, list[str]]
    counts: Counter[str]
    score: float = 0.0


def words_of(text: str) -> list[str]:
    """Key words of a request: quoted phrases whole, otherwise words that carry meaning."""
    phrases = [phrase.strip() for pair in re.findall(r"\"([^\"]{2,80})\"|'([^']{2,80})'", text) for phrase in pair]
    rest = re.sub(r"\"[^\"]*\"|'[^']{2,80}'", " ", text)
    words = [word for word in re.findall(r"[^\W_][\w.+#-]*[\w+#]|[^\W\d_]{2,}", rest) if len(word) > 1]
    return [phrase for phrase in phrases if phrase] + [word for word in words if word.casefold() not in STOP_WORDS]


def build_terms(options: argparse.Namespace) -> list[Term]:
    """Terms from --keywords, else from --task, plus every --regex. A plural also finds the singular."""
    words = [word.strip() for word in options.keywords.split(",") if word.strip()] or words_of(options.task)
    flags = re.NOFLAG if options.case_sensitive else re.IGNORECASE
    terms: dict[str, Term] = {}
    for word in words:
        body = re.escape(word)
        if not options.exact and len(word) > 4 and re.search(r"[^s]s$", word):
            body = re.escape(word[:-1]) + "s?"
        start = r"(?<![^\W_])" if word[0].isalnum() and word.isascii() else ""
        end = r"(?![^\W_])" if options.exact and word[-1].isalnum() else ""
        terms.setdefault(word.casefold(), Term(word, re.compile(start + body + end, flags)))
    for pattern in options.regex:
        terms.setdefault(f"/{pattern}/", Term(f"/{pattern}/", re.compile(pattern, flags)))
    return list(terms.values())[:64]


def search_text(path: str, text: str, terms: list[Term]) -> Found | None:
    lines = lines_of(text)
    found = Found(path, lines, {}, Counter())
    for number, line in enumerate(lines, 1):
        part = line[:LONGEST_LINE]
        for term in terms:
            if amount := sum(1 for _ in term.pattern.finditer(part)):
                found.hits.setdefault(number, []).append(term.shown)
                found.counts[term.shown] += amount
    return found if found.hits else None


def score_files(found: list[Found], terms: list[Term], searched: int) -> None:
    """BM25 over files; a term in the path counts too, and a file with more of the terms beats one with few."""
    having = Counter(term for item in found for term in item.counts)
    average = sum(len(item.lines) for item in found) / max(1, len(found)) or 1.0
    for item in found:
        length = 0.25 + 0.75 * len(item.lines) / average
        for term, amount in item.counts.items():
            rarity = math.log(1 + (searched - having[term] + 0.5) / (having[term] + 0.5))
            item.score += rarity * amount * 2.2 / (amount + 1.2 * length)
        item.score += sum(0.5 for term in terms if term.pattern.search(item.path))
        item.score *= 1 + len(item.counts) / max(1, len(terms))


def rank_lines(item: Found) -> list[int]:
    """Lines of a file by worth: more terms first, headings and definitions before other lines, then as they stand."""
    heading = re.compile(r"\s*(#{1,6}\s|def |class |func |fn |function |export |interface |type )")

    def worth(number: int) -> tuple[float, int]:
        return (-len(item.hits[number]) - 0.5 * bool(heading.match(item.lines[number - 1])), number)

    return sorted(item.hits, key=worth)


def cut_snippets(item: Found, *, context: int, most: int) -> list[dict[str, Any]]:
    """The best lines with their surroundings; surroundings that touch become one snippet."""
    chosen = sorted(rank_lines(item)[:most])
    spans: list[list[int]] = []
    for number in chosen:
        start, end = max(1, number - context), min(len(item.lines), number + context)
        if spans and start <= spans[-1][1] + 1:
            spans[-1][1] = end
        else:
            spans.append([start, end])
    return [
        {
            "cite": f"{item.path}:{next(number for number in chosen if start <= number <= end)}",
            "start": start,
            "end": end,
            "lines": [
                {"line": number, "text": shorten(item.lines[number - 1]), "terms": item.hits.get(number, [])}
                for number in range(start, end + 1)
            ],
        }
        for start, end in spans
    ]


def shorten(line: str) -> str:
    text = "".join(char if char.isprintable() or char == "\t" else "�" for char in line.rstrip())
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def build_result(source: Source, found: list[Found], terms: list[Term], options: argparse.Namespace) -> dict[str, Any]:
    found.sort(key=lambda item: (-item.score, item.path))
    total = sum(len(item.hits) for item in found)
    names = ", ".join(f"'{term.shown}'" for term in terms[:6]) + (" …" if len(terms) > 6 else "")
    summary = f"{total} lines in {len(found)} of {source.read} files mention {names}"
    if found:
        summary += f"; best: {found[0].path}:{rank_lines(found[0])[0]}"
    return {
        "summary": summary + ("; stopped at --max-files or --max-seconds" if source.truncated else ""),
        "skill": "keyword-search-extractor",
        "root": show(source.root),
        "terms": [
            {
                "term": term.shown,
                "files": sum(term.shown in item.counts for item in found),
                "hits": sum(item.counts[term.shown] for item in found),
            }
            for term in terms
        ],
        "searched_files": source.read,
        "matching_files": len(found),
        "matching_lines": total,
        "results": [
            {
                "path": item.path,
                "score": round(item.score, 3),
                "hits": dict(item.counts.most_common()),
                "matching_lines": len(item.hits),
                "snippets": cut_snippets(item, context=max(0, options.context), most=max(1, options.per_file)),
            }
            for item in found[: max(1, options.max_results)]
        ],
        "skipped": source.skipped,
        "truncated": source.truncated,
    }


def print_text(result: dict[str, Any]) -> None:
    print(result["summary"])
    for row in result["results"]:
        hits = ", ".join(f"{term} {amount}" for term, amount in row["hits"].items())
        print(f"\n{row['path']}  ({hits})")
        for index, snippet in enumerate(row["snippets"]):
            if index:
                print("  --")
            for line in snippet["lines"]:
                print(f"  {line['line']:>6}{'>' if line['terms'] else ' '} {line['text']}")
    for row in result["skipped"]:
        print(f"skipped {row['path']}: {row['reason']}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Search a folder for key words; rank files, cut snippets, cite lines.")
    parser.add_argument("--keywords", default="", help="words or phrases, separated by commas")
    parser.add_argument("--task", default="", help="a sentence to take the key words from when --keywords is empty")
    parser.add_argument("--regex", action="append", default=[], metavar="PATTERN", help="a pattern (repeatable)")
    parser.add_argument("--exact", action="store_true", help="whole words only, as they are written")
    parser.add_argument("--case-sensitive", action="store_true", help="tell upper and lower case apart")
    parser.add_argument("--context", type=int, default=1, help="lines around each hit (default: %(default)s)")
    parser.add_argument("--max-results", type=int, default=20, help="files to show (default: %(default)s)")
    parser.add_argument("--per-file", type=int, default=5, help="hits to show of each file (default: %(default)s)")
    add_source_options(parser)
    return parser


def main() -> int:
    use_utf8()
    names = ("--keywords", "--task", "--regex", "--root", "--ignore")
    options = build_parser().parse_args(join_values(sys.argv[1:], names))
    try:
        terms = build_terms(options)
    except re.error as error:
        print(f"error: '{error.pattern}' is not a regular expression: {error.msg}", file=sys.stderr)
        return 2
    if not terms:
        print("error: Nothing to search for; give --keywords, --regex or a --task with key words", file=sys.stderr)
        return 2
    if (source := open_source(options)) is None:
        return 2
    found = [item for path, text in source.files() if (item := search_text(path, text, terms))]
    score_files(found, terms, source.read)
    result = build_result(source, found, terms, options)
    if options.as_json:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        print_text(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
