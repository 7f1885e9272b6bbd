"""Comment the summary of a run on the pull request or issue of the event; a later run of the same task replaces it.

Speaks to the address that GitHub names in `GITHUB_API_URL`, with Python's own library.
"""

import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

MAX_CHARACTERS = 60_000
"""GitHub takes 65,536."""
PAGES = 10


def find_number(event: Mapping[str, Any]) -> int | None:
    """Of the pull request or issue that the workflow runs for; None where it runs for none."""
    for key in ("pull_request", "issue"):
        if number := event.get(key, {}).get("number"):
            return int(number)
    return None


def build_body(summary: str, mark: str) -> str:
    cut = summary if len(summary) <= MAX_CHARACTERS else f"{summary[:MAX_CHARACTERS]}\n\n…"
    # A mention in the answer of an agent calls no one.
    return f"{mark}\n{cut.replace('@', '@&#8203;')}"


def call(method: str, url: str, *, token: str, body: Mapping[str, str] | None = None) -> object:
    if not url.startswith(("https://", "http://127.0.0.1:")):
        raise SystemExit(f"error: {url!r} is not an address of GitHub's API")
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - as above
        return json.load(response)


def find_comment(url: str, token: str, mark: str) -> int | None:
    for page in range(1, PAGES + 1):
        found = cast("list[dict[str, Any]]", call("GET", f"{url}?per_page=100&page={page}", token=token))
        for comment in found:
            if str(comment.get("body", "")).startswith(mark):
                return int(comment["id"])
        if len(found) < 100:
            break
    return None


def main() -> None:
    environ = os.environ
    number = find_number(json.loads(Path(environ["GITHUB_EVENT_PATH"]).read_text("utf-8")))
    if number is None:
        sys.stderr.write("No pull request and no issue: nothing is commented\n")
        return
    digest = hashlib.sha256(environ.get("COMMENT_KEY", "").encode()).hexdigest()[:12]
    mark = f"<!-- agent-run {digest} -->"
    body = {"body": build_body(Path(environ["SUMMARY"]).read_text("utf-8"), mark)}
    token = environ["GITHUB_TOKEN"]
    issues = f"{environ['GITHUB_API_URL']}/repos/{environ['GITHUB_REPOSITORY']}/issues"
    known = find_comment(f"{issues}/{number}/comments", token, mark)
    if known is None:
        call("POST", f"{issues}/{number}/comments", token=token, body=body)
    else:
        call("PATCH", f"{issues}/comments/{known}", token=token, body=body)


if __name__ == "__main__":
    main()
