# /// script
# requires-python = ">=3.12"
# dependencies = ["click>=8.1,<9", "httpx>=0.27,<1"]
# ///
"""List Kalshi markets with prices, filtered and page by page.

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
PAGE_MOST = 1000


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


def get_pages(client: httpx.Client, path: str, key: str, params: dict[str, Any], most: int | None) -> dict[str, Any]:
    """One page, or (with `most`) page after page until the end or until `most` items are there."""
    items: list[dict[str, Any]] = []
    seen: set[str] = set()
    while True:
        if most is not None:  # never ask for more than is shown: the cursor must follow the last item shown
            params = params | {"limit": min(PAGE_MOST, most - len(items))}
        page = get(client, path, params, key)
        items += member(page, key, list)
        cursor = clean(page.get("cursor"))
        if most is None or not cursor or cursor in seen or len(items) >= most:
            return {"items": items, "cursor": cursor}
        seen.add(cursor)
        params = params | {"cursor": cursor}


def page_options(command: Any) -> Any:
    limit = click.option(
        "--limit",
        type=click.IntRange(1, PAGE_MOST),
        default=50,
        show_default=True,
        help="Items in one page (--all picks its own).",
    )
    cursor = click.option("--cursor", default="", help="Continue after the page that returned this cursor.")
    every = click.option("--all", "fetch_all", is_flag=True, help="Fetch page after page, up to --max-items.")
    most = click.option(
        "--max-items", type=click.IntRange(1, 20_000), default=500, show_default=True, help="Where --all stops."
    )
    full = click.option("--full", is_flag=True, help="With --json: every field as the API sends it.")
    return limit(cursor(every(most(full(command)))))


def money(item: dict[str, Any], name: str) -> str:
    """A price in dollars: the fixed-point string of today's API, or the integer cents of the older one."""
    if (value := item.get(f"{name}_dollars")) not in (None, ""):
        return clean(value)
    cents = item.get(name)
    return f"{cents / 100:.4f}" if isinstance(cents, int | float) else ""


def count(item: dict[str, Any], name: str) -> str:
    value = item.get(f"{name}_fp", item.get(name))
    return clean(value).removesuffix(".00") if value is not None else ""


def brief(market: dict[str, Any]) -> dict[str, str]:
    """The fields that most questions need; --full gives all of them."""
    row = {name: clean(market.get(name)) for name in ("ticker", "event_ticker", "title", "yes_sub_title", "status")}
    row |= {name: money(market, name) for name in ("yes_bid", "yes_ask", "no_bid", "no_ask", "last_price")}
    row |= {name: count(market, name) for name in ("volume", "volume_24h", "open_interest")}
    return row | {name: clean(market.get(name)) for name in ("close_time", "result")}


def print_markets(rows: list[dict[str, str]]) -> None:
    for row in rows:
        click.echo(f"{row['ticker']}  [{row['status']}]")
        click.echo(f"  {row['title']}" + (f" / {row['yes_sub_title']}" if row["yes_sub_title"] else ""))
        prices = f"yes {row['yes_bid'] or '-'} bid, {row['yes_ask'] or '-'} ask, last {row['last_price'] or '-'}"
        click.echo(f"  {prices}; volume {row['volume'] or '0'}; closes {row['close_time'] or '-'}")


TIME_FILTERS = ("min_close_ts", "max_close_ts", "min_created_ts", "max_created_ts", "min_settled_ts", "max_settled_ts")


def time_options(command: Any) -> Any:
    for name in TIME_FILTERS:
        bound, field, _ = name.split("_")
        words = f"Only markets {field} {'after' if bound == 'min' else 'before'} this Unix time."
        command = click.option(f"--{name.replace('_', '-')}", type=int, help=words.replace("close ", "closing "))(
            command
        )
    return command


@click.command()
@click.option(
    "--status",
    type=click.Choice(["unopened", "open", "paused", "closed", "settled"]),
    help="Only markets in this state.",
)
@click.option("--event-ticker", default="", help="Only markets of this event.")
@click.option("--series-ticker", default="", help="Only markets of this series.")
@click.option("--tickers", default="", help="Only these markets, separated by commas.")
@click.option("--combos", type=click.Choice(["only", "exclude"]), help="Only, or no, multi-event combination markets.")
@time_options
@page_options
@common_options
def main(
    limit: int,
    cursor: str,
    fetch_all: bool,
    max_items: int,
    full: bool,
    base_url: str,
    timeout: float,
    as_json: bool,
    combos: str | None,
    **filters: Any,
) -> None:
    """List markets with their prices.

    \b
    Examples:
      markets --status open --limit 20
      markets --series-ticker KXHIGHNY --status open --all --json
    """
    params = {"limit": limit, "cursor": cursor, "mve_filter": combos, **filters}
    with open_client(base_url, timeout) as client:
        page = get_pages(client, "markets", "markets", params, max_items if fetch_all else None)
    rows = [brief(market) for market in page["items"]]
    more = f"; more follow the cursor '{page['cursor']}'" if page["cursor"] else ""
    summary = f"{len(rows)} markets{more}"
    if as_json:
        markets = page["items"] if full else rows
        print_json({"summary": summary, "count": len(rows), "cursor": page["cursor"], "markets": markets})
        return
    print_markets(rows)
    click.echo(summary)


if __name__ == "__main__":
    main()
