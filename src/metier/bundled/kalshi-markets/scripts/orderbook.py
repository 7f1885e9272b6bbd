# /// script
# requires-python = ">=3.12"
# dependencies = ["click>=8.1,<9", "httpx>=0.27,<1"]
# ///
"""Show the resting orders of one Kalshi market, with best prices and spread.

Public data of the Kalshi trade API (v2): reads only, no key, no account. With --json nothing but one JSON object goes
to stdout; messages go to stderr and the exit code is not 0 when something failed.
"""

from __future__ import annotations

import json
import sys
import time
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn
from urllib.parse import quote

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


def levels_of(book: dict[str, Any], side: str) -> list[tuple[Decimal, Decimal]]:
    """Bids of one side as (price in dollars, contracts), best first. Older answers count in cents."""
    scale = Decimal(1)
    raw = book.get(f"{side}_dollars")
    if raw is None:
        raw, scale = book.get(side), Decimal(100)
    levels: list[tuple[Decimal, Decimal]] = []
    for level in raw or []:
        try:
            levels.append((Decimal(str(level[0])) / scale, Decimal(str(level[1]))))
        except (InvalidOperation, IndexError, TypeError):
            fail(f"Unexpected answer: {clean(level)!r} is not a price level")
    return sorted(levels, reverse=True)


def best_prices(yes: list[tuple[Decimal, Decimal]], no: list[tuple[Decimal, Decimal]]) -> dict[str, str | None]:
    """The book holds bids only: a bid for no at 0.40 is an offer of yes at 0.60."""
    yes_bid = yes[0][0] if yes else None
    yes_ask = 1 - no[0][0] if no else None
    spread = yes_ask - yes_bid if yes_bid is not None and yes_ask is not None else None
    values = {"yes_bid": yes_bid, "yes_ask": yes_ask, "spread": spread}
    return {name: f"{value:.4f}" if value is not None else None for name, value in values.items()}


def rows_of(levels: list[tuple[Decimal, Decimal]]) -> list[dict[str, str]]:
    return [{"price": f"{price:.4f}", "contracts": f"{size.normalize():f}"} for price, size in levels]


def print_side(name: str, rows: list[dict[str, str]]) -> None:
    click.echo(f"{name} bids" + ("" if rows else ": none"))
    for row in rows:
        click.echo(f"  {row['price']}  {row['contracts']:>12}")


@click.command()
@click.argument("ticker")
@click.option(
    "--depth", type=click.IntRange(0, 100), default=10, show_default=True, help="Price levels on each side; 0 for all."
)
@common_options
def main(ticker: str, depth: int, base_url: str, timeout: float, as_json: bool) -> None:
    """Show the order book of the market TICKER: bids for yes and bids for no, best first.

    \b
    Example:
      orderbook KXHIGHNY-25JAN01-T45 --depth 5
    """
    with open_client(base_url, timeout) as client:
        path = f"markets/{quote(ticker.strip(), safe='')}/orderbook"
        data = get(client, path, {"depth": depth}, f"order book of '{clean(ticker)}'")
    book = data.get("orderbook_fp") or member(data, "orderbook", dict)
    yes, no = levels_of(book, "yes"), levels_of(book, "no")
    best = best_prices(yes, no)
    prices = f"yes {best['yes_bid'] or '-'} bid, {best['yes_ask'] or '-'} ask"
    summary = f"{clean(ticker)}: {prices}, {len(yes)} + {len(no)} levels"
    result = {"summary": summary, "ticker": ticker.strip(), **best, "yes": rows_of(yes), "no": rows_of(no)}
    if as_json:
        print_json(result)
        return
    click.echo(summary)
    print_side("yes", rows_of(yes))
    print_side("no", rows_of(no))


if __name__ == "__main__":
    main()
