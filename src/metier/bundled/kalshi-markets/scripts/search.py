# /// script
# requires-python = ">=3.12"
# dependencies = ["click>=8.1,<9", "httpx>=0.27,<1"]
# ///
"""Find Kalshi events and markets by words.

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


def brief_event(event: dict[str, Any]) -> dict[str, Any]:
    names = ("event_ticker", "series_ticker", "title", "sub_title", "category", "strike_date")
    return {name: clean(event.get(name)) for name in names}


PAGE = 200


def text_of(event: dict[str, Any]) -> str:
    fields = ("event_ticker", "series_ticker", "title", "sub_title", "category")
    return " ".join(clean(event.get(name)) for name in fields).casefold()


def market_text(market: dict[str, Any]) -> str:
    return " ".join(clean(market.get(name)) for name in ("ticker", "title", "yes_sub_title")).casefold()


def score(event: dict[str, Any], words: list[str], markets: list[dict[str, Any]]) -> int:
    """0 when a word is nowhere; otherwise words in the title count three, in its other fields two, in a market one."""
    title, text = clean(event.get("title")).casefold(), text_of(event)
    inside = " ".join(market_text(market) for market in markets)
    points = 0
    for word in words:
        worth = 3 if word in title else 2 if word in text else 1 if word in inside else 0
        if not worth:
            return 0
        points += worth
    return points


def scan(client: httpx.Client, params: dict[str, Any], most: int) -> tuple[list[dict[str, Any]], bool]:
    """Events, page by page, and whether that was all of them."""
    events: list[dict[str, Any]] = []
    cursor, seen = "", set[str]()
    while True:
        page = get(client, "events", {**params, "limit": min(PAGE, most), "cursor": cursor}, "events")
        events += member(page, "events", list)
        cursor = clean(page.get("cursor"))
        if not cursor or cursor in seen:
            return events[:most], len(events) <= most
        if len(events) >= most:
            return events[:most], False
        seen.add(cursor)


@click.command()
@click.argument("query")
@click.option(
    "--status",
    type=click.Choice(["unopened", "open", "closed", "settled", "any"]),
    default="open",
    show_default=True,
    help="Search events in this state.",
)
@click.option("--series-ticker", default="", help="Search this series only.")
@click.option("--markets", "with_markets", is_flag=True, help="Search the markets' names too, and show their prices.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="Most matches to show.")
@click.option(
    "--max-events",
    type=click.IntRange(1, 50_000),
    default=4000,
    show_default=True,
    help="How many events to look at; each 200 cost one request.",
)
@common_options
def main(
    query: str,
    status: str,
    series_ticker: str,
    with_markets: bool,
    limit: int,
    max_events: int,
    base_url: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Find events that have all words of QUERY in their ticker, title or category.

    The API has no search of its own: this script reads the events page by page and looks for the words itself.

    \b
    Examples:
      search "fed rate"
      search "temperature new york" --markets --json
    """
    words = query.casefold().split()
    if not words:
        raise click.BadParameter("Give at least one word", param_hint="QUERY")
    params = {"series_ticker": series_ticker, "status": None if status == "any" else status}
    params["with_nested_markets"] = "true" if with_markets else None
    with open_client(base_url, timeout) as client:
        events, complete = scan(client, params, max_events)
    found: list[tuple[int, dict[str, Any]]] = []
    for event in events:
        markets = event.get("markets") or []
        if points := score(event, words, markets):
            row = brief_event(event) | ({"markets": [brief(market) for market in markets]} if with_markets else {})
            found.append((points, row))
    found.sort(key=lambda pair: (-pair[0], pair[1]["event_ticker"]))
    rows = [row for _, row in found[:limit]]
    reach = f"all {len(events)} events" if complete else f"the first {len(events)} events (raise --max-events for more)"
    summary = f"{len(found)} matches for '{clean(query)}' in {reach}"
    if as_json:
        result = {
            "summary": summary,
            "query": query,
            "scanned": len(events),
            "complete": complete,
            "matches": len(found),
        }
        print_json(result | {"events": rows})
        return
    for row in rows:
        click.echo(f"{row['event_ticker']}  {row['title']}" + (f" ({row['sub_title']})" if row["sub_title"] else ""))
        for market in row.get("markets", []):
            prices = f"yes {market['yes_bid'] or '-'} / {market['yes_ask'] or '-'}"
            click.echo(f"  {market['ticker']}  {market['yes_sub_title']}  {prices}")
    click.echo(summary)


if __name__ == "__main__":
    main()
