"""Redirect targets of a fetched page are checked like the URL of the call."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import override

import pytest
from obedience import Loopback
from workspaces import Drill, call, put

from metier.definitions.names import Profile
from metier.testing.scripted import says
from metier.tools.web.url import WebAccess
from metier.tools.web.web_fetch import WebFetch

pytestmark = pytest.mark.anyio

ALLOW_SITE = "rules: [{tool: WebFetch, allow: true, when: {url.host: {equals: site.example}}}]"
DENY_EVIL = "rules: [{tool: WebFetch, allow: false, reason: Never there, when: {url.host: {equals: evil.example}}}]"
DENY_PATH = "rules: [{tool: WebFetch, allow: false, when: {url.path: {startsWith: /private}}}]"


class Redirecting(ThreadingHTTPServer):
    """A server that redirects `/go?<address>` and records requested hosts and paths."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        outer = self

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.headers["Host"].partition(":")[0] + self.path.partition("?")[0])
                start, _, target = self.path.partition("?")
                self.send_response(302 if start == "/go" else 200)
                if start == "/go":
                    self.send_header("Location", target)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"page")

            @override
            def log_message(self, format: str, *args: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Answering)


@pytest.fixture
def server() -> Iterator[Redirecting]:
    with Redirecting() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def drill(folder: Path, server: Redirecting, target: str, *, profile: Profile) -> Drill:
    port = server.server_address[1]
    web = WebFetch(WebAccess(open_addresses={("127.0.0.1", port)}), resolve=Loopback(), timeout_seconds=60)
    url = f"http://site.example:{port}/go?{target.replace('PORT', str(port))}"
    return Drill(folder, [call("WebFetch", url=url), says("Done.")], profile=profile, tools=(web,))


@pytest.mark.parametrize(
    ("rules", "profile", "target", "words"),
    [
        (ALLOW_SITE, "guarded", "http://evil.example:PORT/stolen", "which was not approved"),
        (DENY_EVIL, "permissive", "http://evil.example:PORT/stolen", "Never there"),
        (DENY_EVIL, "permissive", "//EVIL.example.:PORT/stolen", "Never there"),
        (DENY_PATH, "permissive", "/private/x", "which a rule denies"),
        (DENY_PATH, "permissive", "http://www.site.example:PORT/x/../private/y", "which a rule denies"),
    ],
)
async def test_a_redirect_does_not_bypass_the_rules(
    tmp_path: Path, server: Redirecting, rules: str, profile: Profile, target: str, words: str
) -> None:
    put(tmp_path, {".agent/policy.yaml": rules})
    driven = drill(tmp_path, server, target, profile=profile)

    await driven.run()

    assert server.asked == ["site.example/go"]
    assert words in driven.told[-1]


@pytest.mark.parametrize("target", ["/plain", "http://www.site.example:PORT/plain", "//site.example:PORT/plain"])
async def test_a_redirect_within_the_allowed_host_is_followed(tmp_path: Path, server: Redirecting, target: str) -> None:
    put(tmp_path, {".agent/policy.yaml": ALLOW_SITE})
    driven = drill(tmp_path, server, target, profile="guarded")

    await driven.run()

    assert len(server.asked) == 2
    assert driven.told[-1].endswith("page")


@pytest.mark.parametrize("target", ["http://evil.example:PORT/stolen", "http://site.example:8081/admin"])
async def test_an_approved_fetch_is_not_redirected_to_another_host_or_port(
    tmp_path: Path, server: Redirecting, target: str
) -> None:
    driven = drill(tmp_path, server, target, profile="guarded")
    state = await driven.run()

    await driven.decide("approved")
    await driven.resume(state.run_id)

    assert server.asked == ["site.example/go"]
    assert "which was not approved" in driven.told[-1]
