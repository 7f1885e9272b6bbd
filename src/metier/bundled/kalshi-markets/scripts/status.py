# /// script
# requires-python = ">=3.12"
# dependencies = ["click>=8.1,<9", "httpx>=0.27,<1"]
# ///
"""Say whether the Kalshi exchange and its trading are running, and its opening hours.

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


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def hours_of(schedule: dict[str, Any]) -> list[dict[str, str]]:
    """Opening hours, one row for each session of each day, in the exchange's time zone (US Eastern)."""
    rows: list[dict[str, str]] = []
    for week in member(schedule, "standard_hours", list):
        for day in DAYS:
            rows += [
                {"day": day, "open": clean(session.get("open_time")), "close": clean(session.get("close_time"))}
                for session in week.get(day) or []
            ]
    return rows


def describe(status: dict[str, Any]) -> str:
    exchange = "running" if status.get("exchange_active") else "down"
    trading = "open" if status.get("trading_active") else "halted"
    resume = status.get("exchange_estimated_resume_time")
    return f"Exchange {exchange}, trading {trading}" + (f", expected back at {clean(resume)}" if resume else "")


@click.command()
@click.option("--schedule", "with_schedule", is_flag=True, help="Also show opening hours and maintenance windows.")
@common_options
def main(with_schedule: bool, base_url: str, timeout: float, as_json: bool) -> None:
    """Show whether the exchange is running and trading is open."""
    with open_client(base_url, timeout) as client:
        status = get(client, "exchange/status", {}, "the exchange status")
        schedule = get(client, "exchange/schedule", {}, "the schedule") if with_schedule else {}
    if "exchange_active" not in status:
        fail("Unexpected answer: no 'exchange_active' in it")
    result: dict[str, Any] = {"summary": describe(status), **status}
    if with_schedule:
        times = member(schedule, "schedule", dict)
        result |= {"hours": hours_of(times), "maintenance_windows": times.get("maintenance_windows") or []}
    if as_json:
        print_json(result)
        return
    click.echo(result["summary"])
    for row in result.get("hours", []):
        click.echo(f"  {row['day']:<10} {row['open']} to {row['close']}")
    for window in result.get("maintenance_windows", []):
        click.echo(f"  maintenance: {clean(window.get('start_datetime'))} to {clean(window.get('end_datetime'))}")


if __name__ == "__main__":
    main()
