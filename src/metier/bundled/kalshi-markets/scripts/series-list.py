# /// script
# requires-python = ">=3.12"
# dependencies = ["click>=8.1,<9", "httpx>=0.27,<1"]
# ///
"""List Kalshi series (templates of recurring events) by category, tag or words.

Public data of the Kalshi trade API (v2): reads only, no key, no account. With --json nothing but one JSON object goes
to stdout; messages go to stderr and the exit code is not 0 when something failed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, NoReturn

import click
import httpx

BASE_URL = "https://api.elections.kalshi.com/trade-api/v2"
MAX_BODY_BYTES = 64 * 1024 * 1024
RETRIES = 2


def fail(message: str) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    sys.exit(1)


def clean(value: object) -> str:
    """Text for a terminal: no control characters, no line breaks."""
    return "".join(char if char.isprintable() else " " for char in str(value if value is not None else "")).strip()


def read_body(response: httpx.Response) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            fail(f"The answer is larger than {MAX_BODY_BYTES // 2**20} MB; narrow the request with a filter")
    return bytes(body)


def reason_in(body: bytes) -> str:
    """The API's own words for an error, when it gave any."""
    try:
        data = json.loads(body)
    except ValueError:
        return ""
    error = data.get("error", data) if isinstance(data, dict) else {}
    message = error.get("message") or error.get("details") if isinstance(error, dict) else error
    return f": {clean(message)[:200]}" if message else ""


def fail_with_status(status: int, body: bytes, what: str) -> NoReturn:
    reason = reason_in(body)
    if status == 404:
        fail(f"Not found: {what} (HTTP 404){reason}. Tickers are case-sensitive and mostly upper case")
    if status == 429:
        fail(f"Rate limit reached (HTTP 429) after {RETRIES + 1} attempts{reason}. Wait a few seconds, then try again")
    if status in (401, 403):
        fail(f"The API refused to show {what} without a login (HTTP {status}){reason}")
    fail(f"The API could not answer for {what} (HTTP {status}){reason}")


def decode(response: httpx.Response, body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except ValueError:
        kind = response.headers.get("content-type", "no content type")
        start = clean(body[:60].decode("utf-8", "replace"))
        fail(f"The API answered with something that is not JSON ({kind}, {len(body)} bytes): {start!r}")
    if not isinstance(data, dict):
        fail(f"Unexpected answer: a JSON {type(data).__name__} where an object was expected")
    return data


def get(client: httpx.Client, path: str, params: dict[str, Any], what: str) -> dict[str, Any]:
    """One GET; a busy server (429, 503) is asked again twice, after the pause that it names (at most 5 s)."""
    query = {key: value for key, value in params.items() if value not in (None, "")}
    for attempt in range(RETRIES + 1):
        try:
            with client.stream("GET", path, params=query) as response:
                body = read_body(response)
        except httpx.TimeoutException:
            fail(f"No answer from '{client.base_url.host}' within {client.timeout.read} s for {what}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            fail(f"Cannot reach '{client.base_url}': {clean(error) or type(error).__name__}")
        if response.status_code == 200:
            return decode(response, body)
        if response.status_code not in (429, 503) or attempt == RETRIES:
            fail_with_status(response.status_code, body, what)
        pause = response.headers.get("retry-after", "")
        time.sleep(min(float(pause), 5.0) if pause.isdigit() else 0.5 * 2**attempt)
    raise AssertionError("unreachable")


def member(data: dict[str, Any], key: str, kind: type) -> Any:
    value = data.get(key)
    if value is None and kind is list:
        return []
    if not isinstance(value, kind):
        fail(f"Unexpected answer: no {kind.__name__} {key!r} in it")
    if isinstance(value, list) and not all(isinstance(item, dict) for item in value):
        fail(f"Unexpected answer: {key!r} holds something other than objects")
    return value


def open_client(base_url: str, timeout: float) -> httpx.Client:
    base_url = base_url.strip() or BASE_URL
    if not base_url.startswith(("https://", "http://")):
        raise click.BadParameter(f"{base_url!r} is not an http(s) URL", param_hint="KALSHI_API_BASE_URL")
    headers = {"Accept": "application/json", "User-Agent": "kalshi-markets-skill/1.0"}
    try:
        return httpx.Client(base_url=base_url, timeout=timeout, headers=headers, follow_redirects=True)
    except (httpx.InvalidURL, ValueError) as error:
        raise click.BadParameter(f"{base_url!r} is not a URL: {error}", param_hint="KALSHI_API_BASE_URL") from error


def common_options(command: Any) -> Any:
    """--base-url, --timeout and --json, the same in every script of this skill."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(0.1, 50),
        default=15.0,
        show_default=True,
        help="Seconds to wait for each answer.",
    )
    base_url = click.option(
        "--base-url",
        envvar="KALSHI_API_BASE_URL",
        default=BASE_URL,
        show_default=True,
        show_envvar=True,
        help="Address of the API.",
    )
    return as_json(timeout(base_url(command)))


def print_json(result: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(result, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n")


def brief(series: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {name: clean(series.get(name)) for name in ("ticker", "title", "category", "frequency")}
    row["tags"] = [clean(tag) for tag in series.get("tags") or []]
    if (volume := series.get("volume_fp", series.get("volume"))) is not None:
        row["volume"] = clean(volume)
    return row


def has_words(row: dict[str, Any], words: list[str]) -> bool:
    text = " ".join([row["ticker"], row["title"], row["category"], *row["tags"]]).casefold()
    return all(word in text for word in words)


def start_of(cursor: str, total: int) -> int:
    if cursor and not (cursor.isdigit() and int(cursor) <= total):
        raise click.BadParameter(f"{cursor!r} is not a cursor of this script", param_hint="--cursor")
    return int(cursor or 0)


@click.command("series-list")
@click.option("--category", default="", help="Only this category, for example Economics.")
@click.option("--tags", default="", help="Only series with these tags, separated by commas.")
@click.option("--contains", default="", help="Only series whose ticker, title, category or tags have all these words.")
@click.option("--min-updated-ts", type=int, help="Only series whose description changed after this Unix time.")
@click.option("--with-volume", is_flag=True, help="Also show the volume traded in each series.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Series in one page.")
@click.option("--cursor", default="", help="Continue after the page that returned this cursor.")
@click.option("--all", "fetch_all", is_flag=True, help="Show every match, up to --max-items.")
@click.option("--max-items", type=click.IntRange(1, 20_000), default=1000, show_default=True, help="Where --all stops.")
@click.option("--full", is_flag=True, help="With --json: every field as the API sends it.")
@common_options
def main(
    category: str,
    contains: str,
    limit: int,
    cursor: str,
    fetch_all: bool,
    max_items: int,
    full: bool,
    base_url: str,
    timeout: float,
    as_json: bool,
    with_volume: bool,
    **filters: Any,
) -> None:
    """List series.

    The API sends all series of a category at once, without pages; this script cuts the pages itself.

    \b
    Examples:
      series-list --category Economics
      series-list --contains "new york temperature" --json
    """
    params = {"category": category, "include_volume": "true" if with_volume else None, **filters}
    with open_client(base_url, timeout) as client:
        items = member(get(client, "series", params, "series"), "series", list)
    words = contains.casefold().split()
    found = [(row, item) for item in items if has_words(row := brief(item), words)]
    start = start_of(cursor, len(found))
    end = min(len(found), start + (max_items if fetch_all else limit))
    following = str(end) if end < len(found) else ""
    shown = found[start:end]
    summary = f"{len(shown)} of {len(found)} series" + (f"; more follow the cursor '{following}'" if following else "")
    if as_json:
        series = [item if full else row for row, item in shown]
        print_json(
            {"summary": summary, "count": len(shown), "cursor": following, "total": len(found), "series": series}
        )
        return
    for row, _ in shown:
        click.echo(f"{row['ticker']}  {row['title']}  [{row['category']}] {row['frequency']}".rstrip())
    click.echo(summary)


if __name__ == "__main__":
    main()
