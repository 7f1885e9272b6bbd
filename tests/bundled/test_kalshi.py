"""The market scripts, against a local server that imitates the public API."""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from skill_scripts import run_script

import metier

pytestmark = pytest.mark.slow

SCRIPTS = Path(metier.__file__).parent / "bundled" / "kalshi-markets" / "scripts"
LARGEST_PAGE = 3
"""The real limit is 200 to 1,000; a server may always send fewer items than asked for."""


def market(number: int) -> dict[str, Any]:
    return {
        "ticker": f"KXRAIN-25MAR0{number}-T1",
        "event_ticker": f"KXRAIN-25MAR0{number}",
        "title": f"Will it rain on March {number}?",
        "yes_sub_title": "Above 1 mm",
        "status": "active",
        "yes_bid_dollars": f"0.{40 + number}00",
        "yes_ask_dollars": f"0.{45 + number}00",
        "no_bid_dollars": "0.5300",
        "no_ask_dollars": "0.5800",
        "last_price_dollars": "0.4200",
        "volume_fp": "1200.00",
        "volume_24h_fp": "35.50",
        "open_interest_fp": "800.00",
        "close_time": "2025-03-09T23:59:00Z",
        "result": "",
        "rules_primary": "If it rains more than 1 mm, the market resolves to Yes.",
    }


MARKETS = [market(number) for number in range(1, 8)]
MARKETS[6]["title"] = "Will it \x1b[31mrain\n?"
EVENTS = [
    {
        "event_ticker": f"KXRAIN-25MAR0{number}",
        "series_ticker": "KXRAIN",
        "title": f"Rain in Brest on March {number}?",
        "sub_title": "Daily",
        "category": "Climate",
        "mutually_exclusive": True,
        "markets": [MARKETS[number - 1]],
    }
    for number in range(1, 8)
] + [{"event_ticker": "KXFED-25", "series_ticker": "KXFED", "title": "Fed rate in March?", "markets": []}]
SERIES = [
    {"ticker": "KXRAIN", "title": "Rain in Brest", "category": "Climate", "frequency": "daily", "tags": ["Rain"],
     "settlement_sources": [{"name": "Meteo", "url": "https://meteo.example"}], "volume_fp": "9000.00"},
    {"ticker": "KXFED", "title": "Fed rate decision", "category": "Economics", "frequency": "custom", "tags": None},
]  # fmt: skip
TRADES = [
    {"trade_id": str(n), "ticker": MARKETS[0]["ticker"], "count_fp": "2.50", "yes_price_dollars": "0.4100",
     "no_price_dollars": "0.5900", "taker_side": "yes", "created_time": f"2025-03-01T10:0{n}:00Z"}
    for n in range(5)
]  # fmt: skip


@dataclass(slots=True)
class Api:
    """The server's address, its received requests, and an event that releases slow answers."""

    url: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list[tuple[str, dict[str, str]]])
    released: threading.Event = field(default_factory=threading.Event)
    busy: int = 0

    def page(self, key: str, items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        start = int(query.get("cursor", "c0").removeprefix("c"))
        end = start + min(LARGEST_PAGE, int(query.get("limit", "100")))
        return {key: items[start:end], "cursor": f"c{end}" if end < len(items) else ""}

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """Return status and body for a path of the API; a string body is sent unchanged."""
        if self.busy:
            self.busy -= 1
            return 429, {"error": {"code": "too_many_requests", "message": "too many requests"}}
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match parts:
            case ["exchange", "status"]:
                return 200, {"exchange_active": True, "trading_active": False}
            case ["exchange", "schedule"]:
                hours = {"monday": [{"open_time": "08:00", "close_time": "23:00"}]}
                windows = [{"start_datetime": "2025-03-06T08:00Z", "end_datetime": "2025-03-06T10:00Z"}]
                return 200, {"schedule": {"standard_hours": [hours], "maintenance_windows": windows}}
            case ["markets"]:
                wanted = query.get("event_ticker")
                return 200, self.page("markets", [m for m in MARKETS if wanted in (None, m["event_ticker"])], query)
            case ["markets", "trades"]:
                return 200, self.page("trades", TRADES, query)
            case ["events"]:
                events = [e for e in EVENTS if query.get("series_ticker") in (None, e["series_ticker"])]
                return 200, self.page("events", events, query)
            case ["series"]:
                return 200, {"series": [s for s in SERIES if query.get("category") in (None, s["category"])]}
            case [kind, ticker, *rest]:
                return self.one(kind, ticker, rest)
            case _:
                return 404, {"error": {"code": "not_found", "message": "not found"}}

    def one(self, kind: str, ticker: str, rest: list[str]) -> tuple[int, Any]:
        special: dict[str, tuple[int, Any]] = {
            "DOWN": (500, {"error": {"code": "internal", "message": "database is away"}}),
            "LOGIN": (401, {"code": "unauthorized", "message": "log in"}),
            "HTML": (200, "<html>maintenance</html>"),
            "LIST": (200, []),
            "EMPTY": (200, {}),
            "NOTHING": (200, ""),
        }
        if ticker in special:
            return special[ticker]
        if rest == ["orderbook"] and ticker == "OLD":
            return 200, {"orderbook": {"yes": [[41, 10], [40, 5]], "no": None}}
        if rest == ["orderbook"]:
            book = {"yes_dollars": [["0.4000", "5.00"], ["0.4100", "10.50"]], "no_dollars": [["0.5300", "7.00"]]}
            return 200, {"orderbook_fp": book}
        name, items, key = {
            "markets": ("market", MARKETS, "ticker"),
            "events": ("event", EVENTS, "event_ticker"),
            "series": ("series", SERIES, "ticker"),
        }[kind]
        found = next((item for item in items if item[key] == ticker), None)
        return (200, {name: found}) if found else (404, {"error": {"code": "not_found", "message": "not found"}})


@pytest.fixture
def api() -> Iterator[Api]:
    state = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            path = parts.path.removeprefix("/trade-api/v2")
            state.requests.append((path, query))
            if path.endswith("/SLOW"):
                state.released.wait(30)
            status, value = state.answer(path, query)
            body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(value, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/trade-api/v2"
    yield state
    state.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass(frozen=True, slots=True)
class Scripts:
    """Runs scripts against the server."""

    python: Path
    url: str

    def __call__(self, script: str, *arguments: str) -> tuple[int, str, str]:
        environment = {"PATH": os.environ["PATH"], "KALSHI_API_BASE_URL": self.url, "NO_PROXY": "*"}
        done = run_script(SCRIPTS / f"{script}.py", *arguments, python=self.python, env=environment)
        return done.code, done.out, done.err

    def json(self, script: str, *arguments: str) -> dict[str, Any]:
        code, out, err = self(script, *arguments, "--json")
        assert (code, err) == (0, "")
        value = cast("dict[str, Any]", json.loads(out))
        assert next(iter(value)) == "summary"
        return value


@pytest.fixture
def scripts(api: Api, script_python: Path) -> Scripts:
    return Scripts(script_python, api.url)


def test_status_distinguishes_exchange_and_trading(scripts: Scripts) -> None:
    result = scripts.json("status", "--schedule")
    assert result["summary"] == "Exchange running, trading halted"
    assert result["hours"] == [{"day": "monday", "open": "08:00", "close": "23:00"}]
    assert "monday     08:00 to 23:00" in scripts("status", "--schedule")[1]


def test_a_page_of_markets_names_its_next_cursor(scripts: Scripts, api: Api) -> None:
    first = scripts.json("markets", "--limit", "3", "--status", "open", "--min-close-ts", "1700000000")
    assert api.requests == [("/markets", {"limit": "3", "status": "open", "min_close_ts": "1700000000"})]
    assert [row["ticker"] for row in first["markets"]] == [m["ticker"] for m in MARKETS[:3]]
    assert first["markets"][0]["yes_bid"] == "0.4100"
    assert first["markets"][0]["volume"] == "1200"
    second = scripts.json("markets", "--limit", "3", "--cursor", first["cursor"])
    assert [row["ticker"] for row in second["markets"]] == [m["ticker"] for m in MARKETS[3:6]]
    assert "more follow the cursor 'c6'" in second["summary"]


def test_all_follows_every_page_and_stops_at_the_limit(scripts: Scripts, api: Api) -> None:
    every = scripts.json("markets", "--all")
    assert (every["count"], every["cursor"]) == (7, "")
    assert len(api.requests) == 3
    some = scripts.json("markets", "--all", "--max-items", "4")
    assert (some["count"], some["cursor"]) == (4, "c4"), "the cursor follows the last market shown"
    assert api.requests[-1] == ("/markets", {"limit": "1", "cursor": "c3"})


def test_full_returns_every_field_of_the_api(scripts: Scripts) -> None:
    assert scripts.json("markets", "--full", "--limit", "1")["markets"] == MARKETS[:1]
    assert scripts.json("market", MARKETS[0]["ticker"], "--full")["market"] == MARKETS[0]


def test_text_output_is_readable_and_has_no_control_characters(scripts: Scripts) -> None:
    code, out, err = scripts("markets", "--event-ticker", MARKETS[6]["event_ticker"])
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "yes 0.4700 bid, 0.5200 ask, last 0.4200; volume 1200" in out
    assert out.endswith("1 markets\n")


def test_one_market_shows_prices_spread_and_rules(scripts: Scripts, api: Api) -> None:
    result = scripts.json("market", "KXRAIN-25MAR01-T1")["market"]
    assert (result["yes_bid"], result["yes_ask"], result["spread"]) == ("0.4100", "0.4600", "0.0500")
    assert result["rules_primary"].startswith("If it rains")
    scripts("market", "../series/KXRAIN?x=1")
    assert api.requests[-1] == ("/markets/..%2Fseries%2FKXRAIN%3Fx%3D1", {})


def test_an_order_book_returns_best_prices_of_both_sides(scripts: Scripts, api: Api) -> None:
    result = scripts.json("orderbook", "KXRAIN-25MAR01-T1", "--depth", "5")
    assert api.requests[-1][1] == {"depth": "5"}
    assert (result["yes_bid"], result["yes_ask"], result["spread"]) == ("0.4100", "0.4700", "0.0600")
    assert result["yes"][0] == {"price": "0.4100", "contracts": "10.5"}
    old = scripts.json("orderbook", "OLD")
    assert (old["yes_bid"], old["yes_ask"], old["no"]) == ("0.4100", None, [])


def test_trades_are_listed_and_added_up(scripts: Scripts, api: Api) -> None:
    result = scripts.json("trades", "--ticker", MARKETS[0]["ticker"], "--all")
    assert result["summary"] == "5 trades, 12.50 contracts"
    assert api.requests[0][1]["ticker"] == MARKETS[0]["ticker"]
    assert result["trades"][0]["yes_price"] == "0.4100"


def test_events_and_one_event_show_their_markets(scripts: Scripts, api: Api) -> None:
    result = scripts.json("events", "--with-markets", "--limit", "1", "--series-ticker", "KXRAIN")
    assert api.requests[-1][1] == {"limit": "1", "with_nested_markets": "true", "series_ticker": "KXRAIN"}
    assert result["events"][0]["markets"][0]["ticker"] == "KXRAIN-25MAR01-T1"
    event = scripts.json("event", "KXRAIN-25MAR01")
    assert event["event"]["mutually_exclusive"] is True
    assert [row["ticker"] for row in event["markets"]] == ["KXRAIN-25MAR01-T1"]
    assert scripts.json("event", "KXRAIN-25MAR01", "--no-markets")["markets"] == []


def test_series_are_filtered_paged_and_shown(scripts: Scripts) -> None:
    assert [row["ticker"] for row in scripts.json("series-list", "--contains", "FED rate")["series"]] == ["KXFED"]
    assert scripts.json("series-list", "--category", "Climate")["total"] == 1
    first = scripts.json("series-list", "--limit", "1")
    assert (first["count"], first["cursor"], first["total"]) == (1, "1", 2)
    assert scripts.json("series-list", "--limit", "1", "--cursor", "1")["cursor"] == ""
    assert scripts("series-list", "--cursor", "soup")[0] == 2
    series = scripts.json("series", "KXRAIN")["series"]
    assert series["settlement_sources"] == [{"name": "Meteo", "url": "https://meteo.example"}]
    assert "tags: Rain" in scripts("series", "KXRAIN")[1]


def test_search_reads_every_page_and_ranks_titles_first(scripts: Scripts, api: Api) -> None:
    result = scripts.json("search", "fed RATE")
    assert [row["event_ticker"] for row in result["events"]] == ["KXFED-25"]
    assert (result["scanned"], result["complete"]) == (8, True)
    assert {query.get("status") for _, query in api.requests} == {"open"}
    by_market = scripts.json("search", "above march 5", "--markets", "--limit", "1")
    assert by_market["events"][0]["event_ticker"] == "KXRAIN-25MAR05"
    bounded = scripts.json("search", "fed", "--max-events", "3")
    assert (bounded["matches"], bounded["complete"]) == (0, False)
    assert "the first 3 events" in bounded["summary"]
    assert scripts("search", "  ")[0] == 2


@pytest.mark.parametrize(
    ("ticker", "sentence"),
    [
        ("NONE", "Not found: market 'NONE' (HTTP 404): not found"),
        ("DOWN", "The API could not answer for market 'DOWN' (HTTP 500): database is away"),
        ("LOGIN", "The API refused to show market 'LOGIN' without a login (HTTP 401): log in"),
        ("HTML", "not JSON (text/html, 24 bytes): '<html>maintenance</html>'"),
        ("NOTHING", "not JSON (text/html, 0 bytes)"),
        ("LIST", "Unexpected answer: a JSON list where an object was expected"),
        ("EMPTY", "Unexpected answer: no dict 'market' in it"),
    ],
)
def test_a_failure_is_one_message_on_stderr(scripts: Scripts, ticker: str, sentence: str) -> None:
    code, out, err = scripts("market", ticker, "--json")
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_silent_server_fails_after_the_timeout(scripts: Scripts) -> None:
    code, out, err = scripts("market", "SLOW", "--timeout", "0.3", "--json")
    assert (code, out) == (1, "")
    assert err == "error: No answer from '127.0.0.1' within 0.3 s for market 'SLOW'\n"


def test_a_busy_server_is_retried_until_the_limit(scripts: Scripts, api: Api) -> None:
    api.busy = 2
    assert scripts.json("status")["exchange_active"] is True
    assert len(api.requests) == 3
    api.busy = 9
    code, _, err = scripts("status", "--json")
    assert code == 1
    assert "Rate limit reached (HTTP 429) after 3 attempts: too many requests" in err
    assert len(api.requests) == 6


def test_an_unreachable_or_invalid_address_is_named(script_python: Path) -> None:
    code, out, err = Scripts(script_python, "http://127.0.0.1:9")("markets", "--json")
    assert (code, out) == (1, "")
    assert "Cannot reach 'http://127.0.0.1:9" in err
    assert Scripts(script_python, "file:///etc/passwd")("status")[0] == 2
    code, out, err = Scripts(script_python, "http://localhost:port")("status", "--json")
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_an_empty_list_of_markets_is_not_an_error(scripts: Scripts) -> None:
    result = scripts.json("markets", "--event-ticker", "KXNONE")
    assert (result["summary"], result["markets"], result["cursor"]) == ("0 markets", [], "")
    assert scripts("markets", "--event-ticker", "KXNONE")[1] == "0 markets\n"
