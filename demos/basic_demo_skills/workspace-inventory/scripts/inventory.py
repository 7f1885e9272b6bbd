# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Take stock of a folder: counts, sizes, languages, largest and newest files, duplicates, state of git.

Reads only, follows no symbolic link, and goes on past whatever cannot be read. Standard library only. With --json
nothing but one JSON object goes to stdout.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import io
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

IGNORED_FOLDERS = frozenset(
    ".git .hg .svn .jj node_modules bower_components .venv venv .tox .nox __pycache__ .mypy_cache .ruff_cache "
    ".pytest_cache .hypothesis .gradle .idea .terraform .next .nuxt .cache .eggs target dist build".split()
)
LANGUAGES = {
    language: extensions.split()
    for language, extensions in {
        "Assembly": ".asm .s", "Batch": ".bat .cmd", "C": ".c .h", "C#": ".cs", "C++": ".cc .cpp .cxx .hh .hpp",
        "CSS": ".css .less .sass .scss", "CSV": ".csv .tsv", "Clojure": ".clj .cljs", "Dart": ".dart",
        "Elixir": ".ex .exs", "Erlang": ".erl", "Fortran": ".f90 .f95", "Go": ".go", "GraphQL": ".graphql .gql",
        "Groovy": ".groovy .gradle", "HTML": ".html .htm", "Haskell": ".hs", "INI": ".ini .cfg .conf",
        "JSON": ".json .jsonl .ndjson", "Java": ".java", "JavaScript": ".js .jsx .mjs .cjs", "Julia": ".jl",
        "Jupyter": ".ipynb", "Kotlin": ".kt .kts", "Lua": ".lua", "Markdown": ".md .markdown .mdx", "Nix": ".nix",
        "OCaml": ".ml .mli", "Objective-C": ".m .mm", "PHP": ".php", "Perl": ".pl .pm", "PowerShell": ".ps1 .psm1",
        "Protobuf": ".proto", "Python": ".py .pyi", "R": ".r", "Ruby": ".rb", "Rust": ".rs", "SQL": ".sql",
        "SVG": ".svg", "Scala": ".scala", "Shell": ".sh .bash .zsh .fish", "Svelte": ".svelte", "Swift": ".swift",
        "TOML": ".toml", "TeX": ".tex .bib", "Terraform": ".tf .tfvars", "Text": ".txt .rst .adoc .org .log",
        "TypeScript": ".ts .tsx .mts .cts", "Vue": ".vue", "XML": ".xml .xsd .xsl", "YAML": ".yaml .yml", "Zig": ".zig",
    }.items()
}  # fmt: skip
BY_EXTENSION = {extension: language for language, extensions in LANGUAGES.items() for extension in extensions}
BY_NAME = {"dockerfile": "Docker", "makefile": "Make", "justfile": "Just", "license": "Text", "readme": "Text"}
BLOCK = 1 << 20
MOST_LINES_BYTES = 64 << 20
MOST_SKIPPED = 100


@dataclass(slots=True)
class Entry:
    """One regular file. `lines` is None for a binary, a huge or an unreadable file."""

    path: str
    shown: str
    size: int
    modified: float
    language: str
    lines: int | None = None
    binary: bool = False


@dataclass(slots=True)
class Walk:
    """What a walk over the folder met."""

    files: list[Entry] = field(default_factory=list)
    folders: int = 0
    symlinks: int = 0
    special: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    skipped: list[dict[str, str]] = field(default_factory=list)
    unreadable: int = 0
    truncated: bool = False

    def skip(self, path: str, reason: str) -> None:
        self.unreadable += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append({"path": path, "reason": reason})


def show(path: str) -> str:
    """A path that is safe to print and to put into JSON: undecodable bytes and control characters are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def language_of(name: str) -> str:
    stem, extension = os.path.splitext(name.lower())
    return BY_EXTENSION.get(extension) or BY_NAME.get(stem) or "Other"


def is_ignored(entry: os.DirEntry[str]) -> bool:
    """Folders that tools make: version control, packages, caches, and the records of earlier agent runs."""
    try:
        if not entry.is_dir(follow_symlinks=False):
            return False
    except OSError:
        return False
    return entry.name in IGNORED_FOLDERS or (entry.name == "runs" and os.path.exists(f"{entry.path}/state.db"))


def scan(folder: str, walk: Walk, root: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        walk.skip(show(os.path.relpath(folder, root)), error.strerror or type(error).__name__)
        return []


def visit(entry: os.DirEntry[str], walk: Walk, root: str) -> Iterator[str]:
    """Record one directory entry; yield it when it is a folder to go into."""
    relative = os.path.relpath(entry.path, root)
    try:
        if entry.is_symlink():
            walk.symlinks += 1
            if not os.path.exists(entry.path):
                walk.skip(show(relative), "broken symbolic link")
        elif entry.is_dir(follow_symlinks=False):
            walk.folders += 1
            yield entry.path
        elif entry.is_file(follow_symlinks=False):
            stat = entry.stat(follow_symlinks=False)
            walk.files.append(
                Entry(entry.path, show(relative), stat.st_size, stat.st_mtime, language_of(entry.name)),
            )
        else:
            walk.special += 1
    except OSError as error:
        walk.skip(show(relative), error.strerror or type(error).__name__)


def walk_folder(root: str, *, ignore: list[str], default_ignores: bool, most: int) -> Walk:
    walk = Walk()
    waiting = [root]
    while waiting:
        for entry in scan(waiting.pop(), walk, root):
            relative = os.path.relpath(entry.path, root).replace(os.sep, "/")
            if default_ignores and is_ignored(entry):
                walk.ignored[entry.name] += 1
            elif any(fnmatch.fnmatch(relative, glob) or fnmatch.fnmatch(entry.name, glob) for glob in ignore):
                walk.ignored["by --ignore"] += 1
            elif len(walk.files) >= most:
                walk.truncated = True
                return walk
            else:
                waiting += visit(entry, walk, root)
    return walk


def count_lines(entry: Entry, walk: Walk) -> None:
    """Count lines of text; a NUL byte at the start means binary."""
    try:
        with open(entry.path, "rb") as stream:
            block = stream.read(BLOCK)
            if b"\0" in block[:8192] and not block.startswith((b"\xff\xfe", b"\xfe\xff")):
                entry.binary = True
                return
            if entry.size > MOST_LINES_BYTES:
                return
            lines, last = 0, b"\n"
            while block:
                lines += block.count(b"\n")
                last = block[-1:]
                block = stream.read(BLOCK)
            entry.lines = lines + (last != b"\n")
    except OSError as error:
        walk.skip(entry.shown, error.strerror or type(error).__name__)


def digest(path: str, *, head_only: bool) -> str | None:
    checksum = hashlib.blake2b(digest_size=20)
    try:
        with open(path, "rb") as stream:
            while block := stream.read(BLOCK):
                checksum.update(block)
                if head_only:
                    break
    except OSError:
        return None
    return checksum.hexdigest()


def find_duplicates(files: list[Entry], *, most: int) -> list[dict[str, Any]]:
    """Files with the same bytes: first equal sizes, then equal first megabytes, then equal whole contents.

    `most` sets, and of each as many paths: thousands of copies of one file must not make an answer nobody can take.
    """
    groups: list[list[Entry]] = [[entry for entry in files if entry.size]]
    for key in (lambda e: e.size, lambda e: digest(e.path, head_only=True), lambda e: digest(e.path, head_only=False)):
        finer: list[list[Entry]] = []
        for group in groups:
            parts: dict[Any, list[Entry]] = defaultdict(list)
            for entry in group:
                parts[key(entry)].append(entry)
            finer += [part for value, part in parts.items() if value is not None and len(part) > 1]
        groups = finer
    found = [
        {
            "bytes": group[0].size,
            "copies": len(group),
            "wasted_bytes": group[0].size * (len(group) - 1),
            "paths": sorted(entry.shown for entry in group)[:most],
        }
        for group in groups
    ]
    return sorted(found, key=lambda row: (-row["wasted_bytes"], row["paths"]))[:most]


def run_git(root: str, *arguments: str) -> str | None:
    """Output of one git command, or None. Nothing that the repository configures is executed or written."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-C", root, *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=15, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "backslashreplace") if done.returncode == 0 else None


def read_git(root: str) -> dict[str, Any] | None:
    if (top := run_git(root, "rev-parse", "--show-toplevel")) is None:
        return None
    status = (run_git(root, "status", "--porcelain", "-z", "--", ".") or "").split("\0")
    states = [line[:2] for line in status if len(line) > 3 and line[2] == " "]
    latest = (run_git(root, "log", "-1", "--format=%h%x00%cI%x00%an%x00%s") or "").rstrip("\n").split("\0")
    commits = (run_git(root, "rev-list", "--count", "HEAD") or "0").strip()
    return {
        "top": show(top.rstrip("\n")),
        "branch": (run_git(root, "branch", "--show-current") or "").strip() or None,
        "commits": int(commits),
        "latest": dict(zip(("commit", "date", "author", "subject"), latest, strict=True)) if len(latest) == 4 else None,
        "changed": sum(state != "??" for state in states),
        "untracked": sum(state == "??" for state in states),
    }


def tabulate_languages(files: list[Entry]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    total = sum(entry.size for entry in files) or 1
    for entry in files:
        row = rows.setdefault(entry.language, {"language": entry.language, "files": 0, "lines": 0, "bytes": 0})
        row["files"] += 1
        row["lines"] += entry.lines or 0
        row["bytes"] += entry.size
    for row in rows.values():
        row["percent_of_bytes"] = round(100 * row["bytes"] / total, 1)
    return sorted(rows.values(), key=lambda row: (-row["bytes"], row["language"]))


def tabulate_folders(files: list[Entry]) -> list[dict[str, Any]]:
    """Size of what stands directly under the root, by its first folder."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for entry in files:
        first = entry.shown.split(os.sep)[0] if os.sep in entry.shown else "."
        count[first] += 1
        size[first] += entry.size
    return [{"folder": name, "files": count[name], "bytes": size[name]} for name, _ in size.most_common()]


def size_text(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def summarize(result: dict[str, Any]) -> str:
    totals = result["totals"]
    parts = [f"{totals['files']} files in {totals['folders']} folders, {size_text(totals['bytes'])}"]
    if names := [row["language"] for row in result["languages"] if row["language"] != "Other"][:3]:
        parts.append(f"mostly {', '.join(names)}")
    if result["duplicates"]:
        wasted = sum(row["wasted_bytes"] for row in result["duplicates"])
        amount = len(result["duplicates"])
        parts.append(f"{amount} set{'s' * (amount > 1)} of identical files ({size_text(wasted)} to save)")
    if git := result["git"]:
        changes = git["changed"] + git["untracked"]
        words = "no open changes" if not changes else f"{changes} open change{'s' * (changes > 1)}"
        parts.append(f"git branch '{git['branch'] or 'detached'}' with {words}")
    if totals["unreadable"]:
        parts.append(f"{totals['unreadable']} entries could not be read")
    return "; ".join(parts) + ("; stopped at --max-files" if result["truncated"] else "")


def take_inventory(root: str, options: argparse.Namespace) -> dict[str, Any]:
    walk = walk_folder(
        root, ignore=options.ignore, default_ignores=not options.no_default_ignores, most=options.max_files
    )
    for entry in walk.files:
        count_lines(entry, walk)
    files = sorted(walk.files, key=lambda entry: entry.shown)
    newest = sorted(files, key=lambda entry: -entry.modified)[: options.top]
    result: dict[str, Any] = {"summary": "", "skill": "workspace-inventory", "root": show(root)}
    result["totals"] = {
        "files": len(files),
        "folders": walk.folders,
        "bytes": sum(entry.size for entry in files),
        "lines": sum(entry.lines or 0 for entry in files),
        "binary_files": sum(entry.binary for entry in files),
        "empty_files": sum(entry.size == 0 for entry in files),
        "symlinks": walk.symlinks,
        "special": walk.special,
        "unreadable": walk.unreadable,
    }
    result |= {"languages": tabulate_languages(files), "folders": tabulate_folders(files)[: options.top]}
    largest = sorted(files, key=lambda entry: -entry.size)[: options.top]
    result["largest"] = [{"path": e.shown, "bytes": e.size, "lines": e.lines} for e in largest]
    result["newest"] = [{"path": e.shown, "modified": stamp(e.modified)} for e in newest]
    result["duplicates"] = [] if options.no_duplicates else find_duplicates(files, most=options.top)
    result["git"] = read_git(root)
    result |= {"ignored": dict(walk.ignored), "skipped": walk.skipped, "truncated": walk.truncated}
    if options.list_files:
        result["files"] = [{"path": e.shown, "bytes": e.size, "language": e.language} for e in files]
    result["summary"] = summarize(result)
    return result


def stamp(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "unknown"


def print_text(result: dict[str, Any]) -> None:
    print(f"{result['root']}\n{result['summary']}")
    print("\nLanguages")
    for row in result["languages"]:
        print(f"  {row['language']:<12} {row['files']:>6} files {row['lines']:>9} lines  {size_text(row['bytes']):>10}")
    for title, key, value in (("Largest files", "largest", "bytes"), ("Newest files", "newest", "modified")):
        print(f"\n{title}")
        for row in result[key]:
            shown = size_text(row[value]) if value == "bytes" else row[value]
            print(f"  {shown:>25}  {row['path']}")
    for row in result["duplicates"]:
        more = [f"and {row['copies'] - len(row['paths'])} more"] if row["copies"] > len(row["paths"]) else []
        print(f"\nIdentical, {size_text(row['bytes'])} each: {', '.join([*row['paths'], *more])}")
    for row in result["skipped"]:
        print(f"skipped {row['path']}: {row['reason']}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Take stock of a folder: sizes, languages, duplicates, state of git.")
    parser.add_argument("--root", default=".", help="the folder (default: the current one)")
    parser.add_argument("--top", type=int, default=10, help="rows in each list (default: %(default)s)")
    parser.add_argument("--ignore", action="append", default=[], metavar="GLOB", help="leave these out (repeatable)")
    parser.add_argument("--no-default-ignores", action="store_true", help="go into .git, node_modules, venv … too")
    parser.add_argument("--no-duplicates", action="store_true", help="do not look for identical files (faster)")
    parser.add_argument("--max-files", type=int, default=200_000, help="stop after so many (default: %(default)s)")
    parser.add_argument("--list-files", action="store_true", help="also list every file")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object instead of text")
    return parser


def main() -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    options = build_parser().parse_args()
    root = Path(options.root or ".").expanduser().resolve()
    if not root.is_dir():
        print(f"error: '{show(str(root))}' is not a folder", file=sys.stderr)
        return 2
    options.top = max(1, options.top)
    result = take_inventory(str(root), options)
    if options.as_json:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        print_text(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
