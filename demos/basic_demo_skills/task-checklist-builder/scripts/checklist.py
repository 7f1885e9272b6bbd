# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Collect what is to be done in a folder or a text, and write it as one prioritised Markdown checklist.

Finds check boxes, bullets under headings such as "Action items" or "Next steps", TODO and FIXME comments in code, and
sentences that hand out work ("Ada will … by Friday", "we need to …"). Reads only. Standard library only. With --json
nothing but one JSON object goes to stdout.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from fnmatch import fnmatch
from typing import Any

IGNORED_FOLDERS = frozenset(
    ".git .hg .svn .jj node_modules bower_components .venv venv .tox .nox __pycache__ .mypy_cache .ruff_cache "
    ".pytest_cache .hypothesis .gradle .idea .terraform .next .nuxt .cache .eggs target dist build".split()
)
MOST_SKIPPED = 100
PRIORITIES = ("high", "medium", "low")
PROSE = frozenset(".md .markdown .mdx .txt .rst .adoc .org .text".split())
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
HIGH = re.compile(r"\b(?:urgent|asap|critical|blocker|blocking|immediately|security|P[01])\b|!!+", re.IGNORECASE)
LOW = re.compile(r"\b(?:nice to have|someday|eventually|optional|when there is time|maybe|P[34])\b", re.IGNORECASE)
MARKER = re.compile(
    r"(?:^|[#/*;%<>!-]|\s)\s*(?:@|\b)(TODO|FIXME|XXX|HACK|BUG)\b(?:\(([^)]{1,60})\))?\s*[:\-]?\s*(\S.*)$"
)
COMMENT = re.compile(r"#|//|/\*|^\s*\*|--|<!--|;|%|\"\"\"|'''|\bREM\b")
CHECKBOX = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+\[([ xX~/-])\]\s+(\S.*)$")
BULLET = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(\S.*)$")
HEADING = re.compile(r"\s*(?:#{1,6}\s+(.*?)\s*#*|(?:\*\*|__)([^*_]{3,60})(?:\*\*|__):?|([A-Z][\w /&-]{2,50}):)\s*$")
WORK_HEADING = re.compile(
    r"\b(?:action items?|actions?|to-?dos?|next steps?|follow[- ]?ups?|open (?:tasks|points|items)|tasks?|backlog)\b",
    re.IGNORECASE,
)
DONE_HEADING = re.compile(r"\b(?:done|completed|finished|closed)\b", re.IGNORECASE)
DUTY = re.compile(
    r"\b(?:(?:we|you|i|they|someone|somebody|team) (?:still )?(?:need to|needs to|must|have to|has to|should)"
    r"|(?:needs?|has|have) to be \w+ed|please|don't forget to|remember to|make sure (?:to|that)|action:|todo:)",
    re.IGNORECASE,
)
WILL = re.compile(
    r"^((?:[A-Z][\w'-]+)(?: [A-Z][\w'-]+)?) (?:will|is going to|to|should|must|needs to|has to) ([a-z]\w+)"
)
NOT_PEOPLE = frozenset(
    "it this that there we you they he she i the a an everything nothing each all if when then which what who one "
    "users user people nobody someone readers version step nice next back up how able due according".split()
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


@dataclass(slots=True)
class Item:
    """One thing to do, where it was found, and what was said about it."""

    text: str
    path: str
    line: int
    kind: str
    done: bool = False
    priority: str = "medium"
    owner: str = ""
    due: date | None = None
    also: list[str] = field(default_factory=list)

    @property
    def cite(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


def month_day(text: str, today: date) -> date | None:
    """'March 3', '3 March', with or without a year; without one it is the next such day."""
    patterns = (
        rf"\b({MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?",
        rf"\b(\d{{1,2}})\.? ({MONTH})(?: (\d{{4}}))?",
    )
    for pattern in patterns:
        if match := re.search(pattern, text, re.IGNORECASE):
            name, day = (match[1], match[2]) if match[1][0].isalpha() else (match[2], match[1])
            month = MONTHS.index(name[:3].lower()) + 1
            try:
                found = date(int(match[3] or today.year), month, int(day))
            except ValueError:
                return None
            return found if match[3] or found >= today else found.replace(year=found.year + 1)
    return None


def relative_day(text: str, today: date) -> date | None:
    """'today', 'tomorrow', 'by Friday', 'next week', 'end of month', counted from today."""
    lower = text.lower()
    if match := re.search(r"\b(?:by|on|until|before|due|next|this) (?:next |this )?(" + "|".join(DAYS) + r")\b", lower):
        ahead = (DAYS.index(match[1]) - today.weekday()) % 7 or 7
        return today + timedelta(days=ahead)
    if match := re.search(r"\b(?:in|within) (\d{1,2}) (day|week)s?\b", lower):
        return today + timedelta(days=int(match[1]) * (7 if match[2] == "week" else 1))
    next_month = (today.replace(day=28) + timedelta(days=4)).replace(day=1)
    words = {
        r"\b(?:by |due |until )?(?:today|tonight)\b": today,
        r"\btomorrow\b": today + timedelta(days=1),
        r"\b(?:end of (?:the )?week|this week|eow)\b": today + timedelta(days=(4 - today.weekday()) % 7),
        r"\bnext week\b": today + timedelta(days=7 - today.weekday()),
        r"\b(?:end of (?:the )?month|this month|eom)\b": next_month - timedelta(days=1),
    }
    return next((day for pattern, day in words.items() if re.search(pattern, lower)), None)


def find_due(text: str, today: date) -> date | None:
    for match in re.finditer(r"\b(\d{4})-(\d{2})-(\d{2})\b", text):
        try:
            return date(int(match[1]), int(match[2]), int(match[3]))
        except ValueError:
            continue
    return month_day(text, today) or relative_day(text, today)


def find_owner(text: str, hint: str = "") -> str:
    """'@ada', 'owner: Ada', 'TODO(ada)' or the name before 'will'."""
    if match := re.search(r"(?<![\w.])@([A-Za-z][\w.-]{1,38})", text):
        return match[1].rstrip(".-")
    if match := re.search(r"\b(?:owner|assignee|assigned to|responsible):?\s+([A-Z][\w'-]+(?: [A-Z][\w'-]+)?)", text):
        return match[1]
    if hint and re.fullmatch(r"@?[A-Za-z][\w .-]*", hint) and not find_due(hint, date.today()):
        return hint.lstrip("@")
    match = WILL.match(text)
    return match[1] if match and match[1].split()[0].lower() not in NOT_PEOPLE else ""


def find_priority(text: str, kind: str) -> str:
    if match := re.match(r"\(?([ABC])\)\s", text):
        return PRIORITIES["ABC".index(match[1])]
    if match := re.search(r"\b[Pp]riority:?\s*(high|medium|low)\b|\[(high|medium|low)\]|!(high|medium|low)\b", text):
        return next(word for word in match.groups() if word)
    if re.search(r"\bP2\b", text):
        return "medium"
    if LOW.search(text):
        return "low"
    return "high" if HIGH.search(text) or kind in ("FIXME", "BUG", "XXX") else "medium"


def tidy(text: str) -> str:
    """The task itself: no comment ends, no priority marks, no due: and owner: notes."""
    text = re.sub(r"\s*(?:\*/|-->|#}|\"\"\"|''')\s*$", "", text)
    text = re.sub(r"^\(?[ABC]\)\s+|\[(?:high|medium|low)\]\s*|!(?:high|medium|low)\b|\b[Pp]riority:?\s*\w+", "", text)
    text = re.sub(r"\s*[(\[]?\b[Dd]ue:?\s*\d{4}-\d{2}-\d{2}[)\]]?", "", text)
    text = re.sub(r"[(\[]?\b(?:[Oo]wner|[Aa]ssignee):\s*(?:@[\w.-]+|[A-Z][\w'-]+(?: [A-Z][\w'-]+)?)[)\]]?", "", text)
    text = re.sub(r"^@[A-Za-z][\w.-]{1,38}\s*:?|\s@[A-Za-z][\w.-]{1,38}(?=\s*(?:by \S+)?$)", "", text)
    text = re.sub(r"\s+", " ", text).strip(" -:;,")
    text = "".join(char if char.isprintable() else " " for char in text)
    return text[:1].upper() + text[1:] if len(text) <= 300 else text[:1].upper() + text[1:299] + "…"


def make_item(text: str, place: tuple[str, int], kind: str, *, today: date, hint: str = "", done: bool = False) -> Item:
    due = find_due(f"{text} {hint}", today)
    owner = find_owner(text, hint)
    return Item(tidy(text), *place, kind, done, find_priority(text, kind), owner, due)


def prose_items(path: str, lines: list[str], today: date) -> Iterator[Item]:
    """Check boxes anywhere, bullets under a heading about work, and sentences that hand out work."""
    heading, fence = "", False
    for number, line in enumerate(lines, 1):
        place = (path, number)
        if re.match(r"\s*(```|~~~)", line):
            fence = not fence
        elif fence:
            continue
        elif match := CHECKBOX.match(line):
            yield make_item(match[2], place, "checkbox", today=today, done=match[1] in "xX")
        elif match := MARKER.search(line):
            yield make_item(match[3], place, match[1], today=today, hint=match[2] or "")
        elif match := HEADING.match(line):
            heading = next(part for part in match.groups() if part)
        elif (match := BULLET.match(line)) and WORK_HEADING.search(heading):
            yield make_item(match[1], place, "action", today=today, done=bool(DONE_HEADING.search(heading)))
        else:
            yield from sentence_items(line, place, today)


def sentence_items(line: str, place: tuple[str, int], today: date) -> Iterator[Item]:
    match = BULLET.match(line)
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z@])", match[1] if match else line.strip()):
        named = WILL.match(sentence)
        handed = named and named[1].split()[0].lower() not in NOT_PEOPLE and find_due(sentence, today)
        if len(sentence.split()) > 3 and not sentence.endswith("?") and (handed or DUTY.search(sentence)):
            yield make_item(sentence, place, "sentence", today=today)


def code_items(path: str, lines: list[str], today: date) -> Iterator[Item]:
    for number, line in enumerate(lines, 1):
        match = MARKER.search(line[:2000])
        if match and COMMENT.search(line[: match.start(1)]):
            yield make_item(match[3], (path, number), match[1], today=today, hint=match[2] or "")


def collect(options: argparse.Namespace, source: Source | None, today: date) -> list[Item]:
    items = list(prose_items("text", lines_of(options.text), today)) if options.text else []
    for path, text in source.files() if source else ():
        prose = os.path.splitext(path)[1].lower() in PROSE
        items += (prose_items if prose else code_items)(path, lines_of(text), today)
    return merge([item for item in items if len(item.text) > 2])


def merge(items: list[Item]) -> list[Item]:
    """The same task said twice is one item that knows both places; the more urgent saying wins."""
    kept: dict[str, Item] = {}
    for item in items:
        key = re.sub(r"[\W_]+", " ", item.text).strip().casefold() or item.text
        first = kept.setdefault(key, item)
        if first is not item:
            first.also.append(item.cite)
            first.priority = min(first.priority, item.priority, key=PRIORITIES.index)
            first.owner, first.due = first.owner or item.owner, first.due or item.due
            first.done = first.done and item.done
    order = {item.path: number for number, item in enumerate(kept.values())}
    return sorted(
        kept.values(),
        key=lambda i: (i.done, PRIORITIES.index(i.priority), i.due or date.max, order[i.path], i.line),
    )


def render_line(item: Item) -> str:
    notes = [f"@{item.owner}"] if item.owner else []
    notes += [f"due {item.due.isoformat()}"] if item.due else []
    tail = f" ({', '.join(notes)})" if notes else ""
    return f"- [{'x' if item.done else ' '}] {item.text}{tail} `{item.cite}`"


def render_checklist(items: list[Item], title: str, group_by: str) -> str:
    groups: dict[str, list[Item]] = {}
    for item in items:
        name = {
            "priority": f"{item.priority.capitalize()} priority",
            "owner": item.owner or "Nobody yet",
            "file": item.path,
        }
        groups.setdefault("Done" if item.done else name[group_by], []).append(item)
    parts = [f"# {title}", ""]
    for name, group in groups.items():
        parts += [f"## {name}", "", *map(render_line, group), ""]
    return "\n".join(parts if items else [*parts, "Nothing to do was found.", ""])


def summarize(items: list[Item], today: date, read: int) -> str:
    todo = [item for item in items if not item.done]
    counts = Counter(item.priority for item in todo)
    levels = ", ".join(f"{counts[name]} {name}" for name in PRIORITIES if counts[name])
    late = sum(item.due is not None and item.due < today for item in todo)
    parts = [f"{len(todo)} open tasks" + (f" from {read} files" if read else "") + (f" ({levels})" if levels else "")]
    parts += [f"{late} overdue"] if late else []
    unowned = sum(not item.owner for item in todo)
    parts += [f"{unowned} without an owner"] if unowned else []
    parts += [f"first: {todo[0].text} [{todo[0].cite}]"] if todo else []
    return "; ".join(parts)


def as_row(item: Item, today: date) -> dict[str, Any]:
    return {
        "text": item.text,
        "done": item.done,
        "priority": item.priority,
        "owner": item.owner or None,
        "due": item.due.isoformat() if item.due else None,
        "overdue": bool(item.due and item.due < today and not item.done),
        "cite": item.cite,
        "kind": item.kind,
        "also": item.also,
    }


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Collect open tasks from notes and code into one Markdown checklist.")
    parser.add_argument("--text", default="", help="take tasks from this text; files only when --root is given too")
    parser.add_argument("--title", default="Checklist", help="heading of the checklist (default: %(default)s)")
    parser.add_argument("--group-by", choices=["priority", "owner", "file"], default="priority", help="sections")
    parser.add_argument("--include-done", action="store_true", help="also list what is ticked off")
    parser.add_argument("--today", default="", help="date that 'by Friday' counts from (default: today)")
    parser.add_argument("--max-items", type=int, default=500, help="most tasks to list (default: %(default)s)")
    parser.add_argument("--output", default="", help="also write the checklist to this file")
    add_source_options(parser)
    parser.set_defaults(root=None)
    return parser


def write_output(path: str, text: str) -> str | None:
    """Write the checklist; the error sentence when that failed."""
    try:
        with open(os.path.expanduser(path), "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        return f"Cannot write '{show(path)}': {error.strerror}"
    return None


def main() -> int:
    use_utf8()
    parser = build_parser()
    options = parser.parse_args(join_values(sys.argv[1:], ("--text", "--root", "--title", "--ignore", "--output")))
    try:
        today = date.fromisoformat(options.today) if options.today else date.today()
    except ValueError:
        parser.error(f"'{options.today}' is not a date such as 2025-03-01")
    source = None
    if not (options.text and options.root is None) and (source := open_source(options)) is None:
        return 2
    found = collect(options, source, today)
    items = [item for item in found if options.include_done or not item.done][: max(1, options.max_items)]
    checklist = render_checklist(items, options.title, options.group_by)
    if options.output and (problem := write_output(options.output, checklist)):
        print(f"error: {problem}", file=sys.stderr)
        return 1
    if not options.as_json:
        print(checklist)
        return 0
    summary = summarize(found, today, source.read if source else 0)
    result: dict[str, Any] = {"summary": summary + "; not all was read" * bool(source and source.truncated)}
    result |= {
        "skill": "task-checklist-builder",
        "root": show(source.root) if source else None,
        "today": today.isoformat(),
    }
    result |= {"open": sum(not item.done for item in found), "done": sum(item.done for item in found)}
    result |= {"items": [as_row(item, today) for item in items], "checklist": checklist}
    result |= {"skipped": source.skipped if source else [], "truncated": bool(source and source.truncated)}
    result["artifacts"] = [os.path.abspath(os.path.expanduser(options.output))] if options.output else []
    print(json.dumps(result, ensure_ascii=False, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
