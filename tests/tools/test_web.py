"""WebFetch reaches only the public internet, for any spelling of an address and any server answer."""

import gzip
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import override

import pytest
from file_tools import Bench
from pydantic import JsonValue

from metier.tools.base import ToolResult
from metier.tools.web.url import WebAccess, get_reason, parse_address, parse_url
from metier.tools.web.web_fetch import MAX_REDIRECTS, WebFetch, extract_text
from metier.tools.web.web_fetch import _split_html as split_html  # pyright: ignore[reportPrivateUsage]

pytestmark = pytest.mark.anyio

type Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Server:
    """A scripted server that records the requested hosts."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.hosts: list[str] = []
        outer = self

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.hosts.append(self.headers["Host"])
                status, headers, body = outer.answers.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, format: str, *args: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.port = self.http.server_address[1]

    def text(self, path: str, body: str, kind: str = "text/plain") -> None:
        self.answers[path] = (200, {"Content-Type": kind}, body.encode())


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


class Names:
    """A resolver whose answers change with each query; the last one is repeated."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self._answers:
            raise OSError(host)
        answers = self._answers[host]
        return [answers.pop(0) if len(answers) > 1 else answers[0]]


def make_tool(
    server: Server, *, names: Names | None = None, access: dict[str, tuple[str, ...]] | None = None
) -> WebFetch:
    given = access or {}
    opened = WebAccess(
        open_addresses={("127.0.0.1", server.port)},
        allowed_domains=given.get("allowed_domains", ()),
        denied_domains=given.get("denied_domains", ()),
    )
    return WebFetch(opened, resolve=names or Names(site_example=["127.0.0.1"]), timeout_seconds=5)


async def fetch(tool: WebFetch, url: str, **more: JsonValue) -> ToolResult:
    return await Bench(Path()).call(tool, url=url, **more)


FORBIDDEN = [
    "http://127.0.0.1/", "http://127.0.0.1:8080/", "https://127.0.0.1/", "http://127.1/", "http://127.0.1/",
    "http://127.255.255.254/", "http://2130706433/", "http://0x7f000001/", "http://0x7F.0.0.1/",
    "http://0x7f.0x0.0x0.0x1/", "http://0177.0.0.1/", "http://0177.0.0.01/", "http://017700000001/",
    "http://00000177.0.0.1/", "http://127.0.0.1./", "http://0/", "http://0.0.0.0/", "http://0x0/",
    "http://localhost/", "http://LOCALHOST/", "http://localhost./", "http://a.localhost/", "http://x.internal/",
    "http://printer.local/", "http://router.home.arpa/", "http://10.0.0.1/", "http://10.1/",
    "http://167772161/", "http://012.0.0.1/", "http://172.16.0.1/", "http://172.31.255.255/",
    "http://192.168.0.1/", "http://192.168.1/", "http://0xc0a80001/",
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/", "http://169.254.43518/", "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/", "http://metadata.google.internal/", "http://100.64.0.1/",
    "http://100.100.100.200/", "http://168.63.129.16/", "http://192.0.0.192/", "http://198.18.0.1/",
    "http://224.0.0.1/", "http://239.255.255.250/", "http://240.0.0.1/", "http://255.255.255.255/",
    "http://192.0.2.1/", "http://[::1]/", "http://[::]/", "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[0:0:0:0:0:ffff:127.0.0.1]/",
    "http://[::127.0.0.1]/", "http://[64:ff9b::127.0.0.1]/", "http://[64:ff9b::a00:1]/",
    "http://[64:ff9b:1::1]/", "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::1]/", "http://[2001:0:1::1]/",
    "http://[fe80::1]/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[fc00::1]/",
    "http://[fdff::1]/", "http://[ff02::1]/", "http://[2001:db8::1]/", "http://[100::1]/", "http://[fec0::1]/",
    "http://[::ffff:0:127.0.0.1]/", "http://①②⑦.⓪.⓪.①/", "http://１２７.０.０.１/", "http://127。0。0。1/",
    "http://ｌｏｃａｌｈｏｓｔ/", "http://⑯⑨。②⑤④。⑯⑨｡②⑤④/", "http://user@127.0.0.1/", "http://site.example@127.0.0.1/",
    "http://127.0.0.1@site.example/", "http://site.example:80@127.0.0.1/",
    "http://127.1.1.1:80\\@127.2.2.2:80/", "http://site.example\\@127.0.0.1/",
    "http://site.example#@127.0.0.1\\/", "http://127.0.0.1:80#\\@site.example/", "http:/\\127.0.0.1/",
    "http:127.0.0.1/", "//127.0.0.1/", "http:///127.0.0.1/", "http://site.example%40127.0.0.1/",
    "http://%31%32%37.0.0.1/", "http://127.0.0.1%00.site.example/", "http://127.0.0.1 /", "http://127.0.0.1\t/",
    "http://127.0.0.1\r\nHost: x/", " http://127.0.0.1/", "http://[127.0.0.1]/", "http://[::1/", "http://::1/",
    "http://256.1.1.1/", "http://1.2.3.4.5/", "http://8_8.8.8.8/", "http://0o10.8.8.8/", "http://08.0.0.1/", "http://127.0.0.1:0/",
    "http://site.example:22/", "http://site.example:99999/", "http://site.example:x/", "file:///etc/passwd",
    "ftp://site.example/", "gopher://127.0.0.1:6379/_PING", "dict://127.0.0.1:11211/stat",
    "jar:http://127.0.0.1!/", "data:text/html,x", "javascript:alert(1)", "ldap://127.0.0.1/",
    "http://loop.example/", "http://private.example/", "http://mapped.example/", "http://mixed.example/",
    "http://", "http:///", "",
]  # fmt: skip
BAD_NAMES = {
    "loop.example": ["127.0.0.1"],
    "private.example": ["10.0.0.5"],
    "mapped.example": ["::ffff:10.0.0.5"],
    "mixed.example": ["93.184.216.34", "127.0.0.1"],
}


async def resolve_badly(host: str, port: int) -> Sequence[str]:
    return BAD_NAMES[host]


def test_the_corpus_has_more_than_sixty_spellings() -> None:
    assert len(set(FORBIDDEN)) >= 60


@pytest.mark.parametrize("url", FORBIDDEN, ids=lambda url: ascii(url)[:70])
async def test_forbidden_address_is_rejected_before_connecting(url: str) -> None:
    result = await fetch(WebFetch(resolve=resolve_badly), url)

    assert (result.ok, result.meta["code"]) == (False, "permission_denied")
    assert "\n" not in result.error


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://example.com", "example.com", 80),
        ("HTTPS://Example.COM./a?b=c#d", "example.com", 443),
        ("https://example.com:8443/", "example.com", 8443),
        ("http://93.184.216.34/", "93.184.216.34", 80),
        ("http://1.1/", "1.0.0.1", 80),
        ("http://[2606:4700::1111]/", "2606:4700::1111", 80),
        ("http://bücher.example/ä?ö", "xn--bcher-kva.example", 80),
        ("http://127.example.com/", "127.example.com", 80),
        ("http://10.example/", "10.example", 80),
        ("http://localhost.example.com/", "localhost.example.com", 80),
        ("http://172.32.0.1/", "172.32.0.1", 80),
        ("http://100.128.0.1/", "100.128.0.1", 80),
        ("http://[64:ff9b::5db8:d822]/", "64:ff9b::5db8:d822", 80),
        ("http://[::ffff:93.184.216.34]/", "93.184.216.34", 80),
        ("http://a_b.example/x@y", "a_b.example", 80),
    ],
)
def test_similar_public_addresses_are_allowed(url: str, host: str, port: int) -> None:
    parsed = parse_url(url)

    assert (parsed.host, parsed.port) == (host, port)
    assert parsed.address is None or get_reason(parse_address(host)) == ""


async def test_page_is_fetched_from_the_checked_address_with_its_own_host_name(server: Server) -> None:
    server.text("/a?b=1", "hello")

    result = await fetch(make_tool(server), f"http://site.example:{server.port}/a?b=1")

    assert result.output == f"http://site.example:{server.port}/a?b=1\n\nhello"
    assert server.hosts == [f"site.example:{server.port}"]


async def test_host_is_resolved_once_and_checked_again_on_redirect(server: Server) -> None:
    server.text("/", "hello")
    server.answers["/again"] = (302, {"Location": "/"}, b"")
    base = f"http://rebind.example:{server.port}"

    good = Names(rebind_example=["127.0.0.1", "10.0.0.1"])
    once = await fetch(make_tool(server, names=good), base)
    bad = Names(rebind_example=["127.0.0.1", "10.0.0.1"])
    twice = await fetch(make_tool(server, names=bad), f"{base}/again")

    assert (once.ok, good.asked) == (True, ["rebind.example"])
    assert (twice.ok, bad.asked) == (False, ["rebind.example"] * 2)
    assert "leads to a private network" in twice.error


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:1/", "http://169.254.169.254/", "//10.0.0.1/", "file:///etc/passwd", "http://[::1]/", "http://0x7f.1/",
     "http://user@site.example/", "\\\\127.0.0.1\\x", "gopher://site.example/"],
)  # fmt: skip
async def test_redirect_to_a_forbidden_address_is_rejected(server: Server, target: str) -> None:
    server.answers["/"] = (302, {"Location": target}, b"")

    result = await fetch(make_tool(server), f"http://site.example:{server.port}/")

    assert (result.ok, result.meta["code"]) == (False, "permission_denied")
    assert len(server.hosts) == 1


async def test_at_most_five_redirects_are_followed(server: Server) -> None:
    for number in range(MAX_REDIRECTS + 1):
        server.answers[f"/{number}"] = (301, {"Location": f"/{number + 1}"}, b"")
    server.text(f"/{MAX_REDIRECTS + 1}", "end")
    base = f"http://site.example:{server.port}"

    assert (await fetch(make_tool(server), f"{base}/1")).ok
    assert "More than 5 redirects" in (await fetch(make_tool(server), f"{base}/0")).error


async def test_sizes_are_limited_after_decompression(server: Server) -> None:
    packed = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    server.answers["/small"] = (200, packed, gzip.compress(b"hello"))
    server.answers["/bomb"] = (200, packed, gzip.compress(b"x" * 50_000_000))
    server.answers["/odd"] = (200, packed | {"Content-Encoding": "br"}, b"xx")
    server.answers["/broken"] = (200, packed, b"no gzip at all")
    base = f"http://site.example:{server.port}"

    small, bomb = await fetch(make_tool(server), f"{base}/small"), await fetch(make_tool(server), f"{base}/bomb")
    cut = await fetch(make_tool(server), f"{base}/bomb", max_bytes=10)

    assert str(small.output).endswith("\n\nhello")
    assert str(bomb.output).endswith("[cut after 1000000 bytes]\n[28000 of 1000000 characters]")
    assert str(cut.output).endswith("xxxxxxxxxx\n[cut after 10 bytes]")
    assert "unsupported encoding 'br'" in (await fetch(make_tool(server), f"{base}/odd")).error
    assert "is damaged" in (await fetch(make_tool(server), f"{base}/broken")).error


async def test_errors_and_binary_content_are_reported(server: Server) -> None:
    server.text("/image", "x", "image/png")
    server.answers["/bare"] = (200, {}, b"a\0b")
    base = f"http://site.example:{server.port}"

    assert "answered 404 Not Found" in (await fetch(make_tool(server), f"{base}/none")).error
    assert "is not text but 'image/png'" in (await fetch(make_tool(server), f"{base}/image")).error
    assert "is not text" in (await fetch(make_tool(server), f"{base}/bare")).error
    assert "was not found" in (await fetch(make_tool(server), "http://unknown.example/")).error


async def test_domain_lists_apply_to_every_redirect(server: Server) -> None:
    names = {"a_example": ["127.0.0.1"], "sub_a_example": ["127.0.0.1"], "b_example": ["127.0.0.1"]}
    server.text("/", "hello")
    server.answers["/away"] = (302, {"Location": f"http://b.example:{server.port}/"}, b"")
    only_a = make_tool(server, names=Names(**names), access={"allowed_domains": ("a.example",)})
    no_b = make_tool(server, names=Names(**names), access={"denied_domains": ("*.b.example",)})

    assert (await fetch(only_a, f"http://a.example:{server.port}/")).ok
    assert (await fetch(only_a, f"http://sub.a.example:{server.port}/")).ok
    assert "not among those" in (await fetch(only_a, f"http://b.example:{server.port}/")).error
    assert "not among those" in (await fetch(only_a, f"http://a.example:{server.port}/away")).error
    assert "is denied" in (await fetch(no_b, f"http://a.example:{server.port}/away")).error


async def test_slow_server_times_out(server: Server) -> None:
    server.answers["/"] = (200, {"Content-Type": "text/plain", "Content-Length": "100"}, b"short")
    tool = WebFetch(
        WebAccess(open_addresses={("127.0.0.1", server.port)}),
        resolve=Names(s_example=["127.0.0.1"]),
        timeout_seconds=0.3,
    )

    assert not (await fetch(tool, f"http://s.example:{server.port}/")).ok


def make_certificate(folder: Path) -> Path:
    file = folder / "both.pem"
    subject = ["-subj", "/CN=site.example", "-addext", "subjectAltName=DNS:site.example"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", file, "-out", folder / "cert.pem"], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (folder / "cert.pem").read_bytes())
    return file


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    try:
        return make_certificate(tmp_path)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")


def serve_securely(server: Server, certificate: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    server.http.socket = serving.wrap_socket(server.http.socket, server_side=True)
    server.text("/", "hello")


async def test_only_certificates_from_the_environment_are_trusted(
    server: Server, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_securely(server, certificate)
    opened = WebAccess(open_addresses={("127.0.0.1", server.port)})
    tool = WebFetch(opened, resolve=Names(site_example=["127.0.0.1"]), timeout_seconds=5)

    assert "CERTIFICATE_VERIFY_FAILED" in (await fetch(tool, f"https://site.example:{server.port}/")).error
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert (await fetch(tool, f"https://site.example:{server.port}/")).ok
    monkeypatch.delenv("SSL_CERT_FILE")
    assert not (await fetch(tool, f"https://site.example:{server.port}/")).ok


async def test_certificate_is_checked_against_the_host_name_of_a_pinned_address(
    server: Server, certificate: Path
) -> None:
    serve_securely(server, certificate)
    trusting = ssl.create_default_context(cafile=certificate)
    opened = WebAccess(open_addresses={("127.0.0.1", server.port)})
    names = Names(site_example=["127.0.0.1"], other_example=["127.0.0.1"])
    tool = WebFetch(opened, resolve=names, timeout_seconds=5, tls=trusting)

    assert (await fetch(tool, f"https://site.example:{server.port}/")).ok
    assert "cannot be reached" in (await fetch(tool, f"https://other.example:{server.port}/")).error


def test_page_becomes_text_with_title_headings_links_lists_and_code() -> None:
    html = (
        "<html><head><title>A &amp; B</title><style>p{}</style><script>evil('<p>')</script></head><body><!-- x > y -->"
        "<h2>Head <i>ing</i></h2><p>See <a href='../c?d=1'>this  page</a> or <a href='javascript:x()'>that</a>.<br>More"
        "<ul><li>one<li>two</ul><pre>a\n  b &lt; c</pre><svg><text>no</text></svg><img alt='a picture' src=x>1 < 2"
    )

    assert extract_text(html, parse_url("http://site.example/a/b")) == (
        "Title: A & B\n\n## Head ing\n\nSee [this page](http://site.example/c?d=1) or that.\nMore\n\n- one\n- two\n\n"
        "```\na\n  b < c\n```\n\na picture1 < 2"
    )


def test_many_angle_brackets_are_one_text_node() -> None:
    flood = "a < b <3 <" + "<" * 200_000

    assert [piece.text for piece in split_html(flood)] == [flood]
    assert extract_text(f"<p>{flood}</p>", parse_url("http://site.example/")) == flood


@pytest.mark.parametrize(
    "piece", ["<!--", "<![CDATA[", "<a href='", "<a ", "<script>", "&#1", "<title>", "<pre>", '<a b=">']
)
def test_hostile_pages_take_linear_time(piece: str) -> None:
    assert extract_text(piece * (200_000 // len(piece)), parse_url("http://site.example/")) is not None
