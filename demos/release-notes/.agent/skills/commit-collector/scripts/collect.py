# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Collect the commits since the last tag (or --since) into a JSON file, each with its kind. Changes nothing else."""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

CONVENTIONAL = re.compile(r"(?P<kind>[a-z]+)(?:\((?P<scope>[^)]+)\))?(?P<breaking>!)?:\s+(?P<text>.+)", re.IGNORECASE)
KINDS = {
    "feat": "added",
    "feature": "added",
    "fix": "fixed",
    "bugfix": "fixed",
    "perf": "changed",
    "refactor": "internal",
    "style": "internal",
    "test": "internal",
    "tests": "internal",
    "build": "internal",
    "ci": "internal",
    "chore": "internal",
    "docs": "documentation",
    "doc": "documentation",
    "revert": "removed",
    "security": "security",
}
FIRST_WORDS = {
    "added": {"add", "adds", "added", "introduce", "support", "allow", "offer", "create", "implement"},
    "fixed": {"fix", "fixes", "fixed", "repair", "correct", "prevent", "avoid", "handle"},
    "removed": {"remove", "removes", "removed", "drop", "delete", "revert"},
    "documentation": {"document", "documents", "docs", "explain"},
    "internal": {"refactor", "test", "tests", "bump", "lint", "format", "ci"},
    "security": {"security"},
}
ENDED, FIELD = "\x1e", "\x1f"
MAX_COMMITS = 2000


class Refused(Exception):
    """The repository cannot be read as asked."""


def git(repository: Path, *arguments: str) -> str:
    # No option of the repository may run a program or follow the user's habits.
    quiet = [
        "-c",
        f"safe.directory={repository.resolve()}",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "log.showSignature=false",
    ]
    done = subprocess.run(
        ["git", *quiet, "-C", str(repository), *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Refused(said[-1] if said else "git failed")
    return done.stdout.decode("utf-8", "replace")


def find_start(repository: Path, since: str, until: str) -> str:
    """The point after which commits count; empty for all of them."""
    if since:
        return git(repository, "rev-parse", "--verify", "--end-of-options", f"{since}^{{commit}}").strip()
    try:
        return git(repository, "describe", "--tags", "--abbrev=0", until).strip()
    except Refused:
        return ""


def read_commits(repository: Path, start: str, until: str) -> list[dict[str, object]]:
    form = FIELD.join(["%H", "%h", "%an", "%aI", "%s", "%b"]) + ENDED
    span = f"{start}..{until}" if start else until
    text = git(repository, "log", "--no-merges", "--reverse", f"--max-count={MAX_COMMITS}", f"--format={form}", span)
    return [read_commit(piece.lstrip("\n").split(FIELD)) for piece in text.split(ENDED) if piece.strip()]


def read_commit(fields: list[str]) -> dict[str, object]:
    full, short, author, date, subject, body = fields
    match = CONVENTIONAL.fullmatch(subject)
    known = match is not None and match["kind"].lower() in KINDS
    text = match["text"] if match and known else subject
    breaking = bool(match and known and match["breaking"]) or bool(re.search(r"(?m)^BREAKING[ -]CHANGE:", body))
    return {
        "hash": full,
        "short": short,
        "author": author,
        "date": date,
        "subject": subject,
        "text": text[:1].upper() + text[1:],
        "kind": KINDS[match["kind"].lower()] if match and known else guess_kind(subject),
        "scope": (match["scope"] or "") if match and known else "",
        "breaking": breaking,
        "note": find_note(body),
    }


def guess_kind(subject: str) -> str:
    first = re.split(r"\W", subject.lower(), maxsplit=1)[0]
    return next((kind for kind, words in FIRST_WORDS.items() if first in words), "changed")


def find_note(body: str) -> str:
    """What a breaking change says about itself."""
    match = re.search(r"(?ms)^BREAKING[ -]CHANGE:\s*(.+?)(?:\n\s*\n|\Z)", body)
    return " ".join(match[1].split()) if match else ""


def read_request(text: str, name: str) -> str:
    match = re.search(rf'\b{name}="([^"]*)"', text)
    return match[1].strip() if match else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path.cwd(), help="a folder of the repository")
    parser.add_argument("--since", default="", help="commits after this tag, branch or hash; else the last tag")
    parser.add_argument("--until", default="", help="up to this one; else HEAD")
    parser.add_argument("--version", default="", help="how the release is called")
    parser.add_argument("--request", default="", help='words of a task; since="…", until="…" and version="…" count')
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    since, until, version = (
        getattr(options, name) or read_request(options.request, name) for name in ("since", "until", "version")
    )
    try:
        until = git(
            options.repository, "rev-parse", "--verify", "--end-of-options", f"{until or 'HEAD'}^{{commit}}"
        ).strip()
        start = find_start(options.repository, since, until)
        commits = read_commits(options.repository, start, until)
    except (Refused, OSError) as error:
        sys.stderr.write(f"The commits cannot be read: {error}\n")
        return 1
    if not commits:
        sys.stderr.write(f"There are no commits since {since or start or 'the beginning'}\n")
        return 1
    kinds = dict(Counter(str(commit["kind"]) for commit in commits))
    told = {"version": version or "Unreleased", "since": since or start, "until": until, "commits": commits}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", "utf-8")
    breaking = sum(bool(commit["breaking"]) for commit in commits)
    summary = f"{len(commits)} commits since {since or start or 'the beginning'}, {breaking} of them breaking"
    result = {"summary": summary, "artifacts": [str(options.out)], "kinds": kinds}
    sys.stdout.write((json.dumps(result, ensure_ascii=False) if options.json else summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
