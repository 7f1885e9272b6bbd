# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Check release notes against the commits that they were made from.

Exit code 1: something is wrong. With --json it is 0 then too, and the faults are in the result.
"""

import argparse
import json
import re
import sys
from itertools import pairwise
from pathlib import Path

GROUPS = ["Breaking changes", "Security", "Added", "Changed", "Fixed", "Removed", "Documentation", "Internal"]
HASHES = re.compile(r"\(((?:[0-9a-f]{7,40})(?:,\s*[0-9a-f]{7,40})*)\)")

MAX_SUMMARY = 1500


def find_faults(lines: list[str], told: dict[str, object]) -> list[tuple[int, str]]:
    commits = told["commits"]
    faults = [*check_title(lines, str(told["version"])), *check_groups(lines)]
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        named = [each for match in HASHES.finditer(line) for each in re.split(r",\s*", match[1])]
        for name in named:
            full = next((commit["hash"] for commit in commits if commit["hash"].startswith(name)), "")
            seen.add(full)
            if not full:
                faults.append((number, f"{name} is none of the commits"))
        if line.startswith("- ") and not named:
            faults.append((number, "the entry names no commit"))
    missing = [commit for commit in commits if commit["hash"] not in seen]
    faults += [(1, f"{commit['short']} is left out: {commit['subject']}") for commit in missing]
    faults += check_breaking(lines, commits)
    return sorted(faults)


def check_title(lines: list[str], version: str) -> list[tuple[int, str]]:
    title = next((line for line in lines if line.startswith("# ")), "")
    return [] if version in title else [(1, f"no title names the version {version}")]


def check_groups(lines: list[str]) -> list[tuple[int, str]]:
    headings = [(number, line[3:].strip()) for number, line in enumerate(lines, start=1) if line.startswith("## ")]
    faults = [
        (number, f"{name!r} is no group; there are {', '.join(GROUPS)}")
        for number, name in headings
        if name not in GROUPS
    ]
    known = [(number, GROUPS.index(name)) for number, name in headings if name in GROUPS]
    faults += [(at[0], "the group stands too late") for before, at in pairwise(known) if at[1] <= before[1]]
    ends = [number for number, _ in headings[1:]] + [len(lines) + 1]
    for (start, name), end in zip(headings, ends, strict=True):
        if not any(line.startswith("- ") for line in lines[start : end - 1]):
            faults.append((start, f"the group {name!r} is empty"))
    return faults


def check_breaking(lines: list[str], commits: list[dict[str, object]]) -> list[tuple[int, str]]:
    """A breaking change under another heading is overlooked."""
    group, faults = "", []
    for number, line in enumerate(lines, start=1):
        group = line[3:].strip() if line.startswith("## ") else group
        faults += [
            (number, f"{commit['short']} is a breaking change and belongs under {GROUPS[0]!r}")
            for commit in commits
            if commit["breaking"] and commit["short"] in line and group != GROUPS[0]
        ]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=Path, required=True, help="the file that the collector wrote")
    parser.add_argument("--notes", type=Path, required=True, help="the notes")
    parser.add_argument("--out", type=Path, help="a file for the verdict")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    try:
        told = json.loads(options.commits.read_text("utf-8"))
        faults = find_faults(options.notes.read_text("utf-8").splitlines(), told)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"The notes cannot be checked: {error!r}\n")
        return 1
    said = [f"{options.notes.name}:{number}: {text}" for number, text in faults]
    if options.out:
        options.out.write_text("\n".join(said or [f"ok: {len(told['commits'])} commits"]) + "\n", "utf-8")
    if options.json:
        summary = (
            f"{len(said)} faults in {options.notes.name}: {'; '.join(said)}"
            if said
            else f"The notes hold: all {len(told['commits'])} commits are in them, and nothing else"
        )
        sys.stdout.write(json.dumps({"summary": summary[:MAX_SUMMARY], "faults": said}, ensure_ascii=False) + "\n")
        return 0
    sys.stdout.write(
        "\n".join(said or [f"The notes hold: all {len(told['commits'])} commits are in them, and nothing else"]) + "\n"
    )
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
