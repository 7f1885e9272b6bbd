"""`WebFetch`: the readable text of one page of the public internet.

Every hop of a redirect is checked, and connected to by the checked address. An HTML page becomes its title, headings,
paragraphs, lists, links and code. The extraction reads each character a fixed number of times: the parser of the
standard library takes minutes for some pages of this size, and pages are untrusted.
"""

import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from html import unescape
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct
from pydantic import JsonValue

from metier.errors import ToolFailed
from metier.prompts.texts import build_parameters, load_tool_text
from metier.tools.base import PathGuard, Preview, ToolContext, ToolInfo, ToolResult
from metier.tools.files.file_text import is_binary
from metier.tools.web.url import (
    Resolver,
    WebAccess,
    WebUrl,
    check_domain,
    check_name,
    join_url,
    list_addresses,
    parse_url,
    pin_url,
    resolve_host,
)

if TYPE_CHECKING:
    import httpx2


MAX_REDIRECTS = 5
MAX_BYTES = 1_000_000
MAX_CHARACTERS = 28_000
_MAX_ADDRESSES = 3
"""Maximum number of a host's addresses to try."""
# Many sites refuse clients whose name doesn't start like that of a browser.
_AGENT = "Mozilla/5.0 (compatible; Metier)"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEXT_TYPES = re.compile(
    r"text/.+|application/(?:.+\+)?(?:json|xml|yaml)|application/(?:x-)?(?:javascript|yaml|toml|ndjson)|image/svg\+xml"
)
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_CHARSETS = re.compile(
    r"utf-?8|utf-?16(?:le|be)?|us-ascii|iso-8859-\d+|latin-?1|(?:windows-|cp)125\d|shift_jis|euc-(?:jp|kr)"
    r"|gb(?:2312|k|18030)|big5|koi8-[ru]"
)
"""Character sets of the web. Other names could select Python codecs that do more, such as interpret escapes."""
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([\w-]{1,40})", re.IGNORECASE)


class _Answer(Struct, frozen=True):
    url: WebUrl
    kind: str
    """The content type, without its parameters."""
    charset: str
    data: bytes
    is_cut: bool


class WebFetch:
    info = ToolInfo(
        id="builtin:WebFetch",
        name="WebFetch",
        description=load_tool_text("WebFetch").description,
        category="web",
        input_schema=build_parameters("WebFetch", {"url": "string", "max_bytes": "integer"}, required=("url",)),
        output_schema={"type": "string"},
        risk="medium",
        # Not `read`, although it may be repeated: the URL can carry data to a third party.
        effect="idempotent",
    )

    def __init__(
        self,
        access: WebAccess | None = None,
        *,
        resolve: Resolver = resolve_host,
        timeout_seconds: float = 30,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._access = access or WebAccess()
        self._resolve = resolve
        self._timeout_seconds = timeout_seconds
        self._tls = tls

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        url, most = parse_url(str(arguments["url"])), arguments.get("max_bytes")
        seconds = min(self._timeout_seconds, context.timeout_seconds or self._timeout_seconds)
        try:
            with anyio.fail_after(seconds):
                size = max(1, min(most, MAX_BYTES)) if isinstance(most, int) else MAX_BYTES
                answer = await self._follow(url, size, guard=context.paths)
        except TimeoutError as error:
            raise ToolFailed(f"URL {url.text!r} took longer than {seconds:g} seconds", code="timeout") from error
        return ToolResult(ok=True, output=await run_sync(_render, answer))

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview | None:
        """Preview the resolved form of a URL with non-ASCII letters, which may look like other letters."""
        del context
        written = str(arguments["url"])
        return None if written.isascii() else Preview(f"Asks {parse_url(written).text}\n")

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """Reject an invalid URL, or a host that is not allowed."""
        try:
            url = parse_url(str(arguments["url"]))
            check_domain(url, self._access)
            check_name(url)
        except ToolFailed as error:
            return error.sentence
        return ""

    async def get(self, address: str, *, headers: Mapping[str, str], most: int) -> bytes:
        """Fetch a URL with the caller's headers. Redirects are not followed, so that no other host gets the headers."""
        url = parse_url(address)
        answer = await self._ask_any(url, await self._list_addresses(url), most, headers=headers)
        if isinstance(answer, str):
            raise ToolFailed(f"Host {url.host!r} redirects to another address", code="execution_failed")
        return answer.data

    async def _follow(self, url: WebUrl, most: int, *, guard: PathGuard) -> _Answer:
        """Fetch a URL and follow redirects. The rules apply to each target as if the call had named it."""
        for _ in range(MAX_REDIRECTS + 1):
            addresses = await self._list_addresses(url)
            answer = await self._ask_any(url, addresses, most)
            if isinstance(answer, _Answer):
                return answer
            before, url = url, join_url(url, answer)
            _check_hop(before, url, guard)
        raise ToolFailed(f"More than {MAX_REDIRECTS} redirects, the last one to {url.text!r}", code="execution_failed")

    async def _list_addresses(self, url: WebUrl) -> list[str]:
        return await list_addresses(url, self._access, resolve=self._resolve)

    async def _ask_any(
        self, url: WebUrl, addresses: Sequence[str], most: int, *, headers: Mapping[str, str] | None = None
    ) -> _Answer | str:
        # Late: importing it takes 0.1 s, and most runs fetch nothing.
        import httpx2

        problem = ""
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await self._ask(url, address, most, more=headers or {})
            # Only this failure proves that the request was not sent, so only then another address may get it.
            except httpx2.ConnectError as error:
                problem = str(error)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise ToolFailed(
                    f"The connection to {url.text!r} failed: {type(error).__name__}", code="execution_failed"
                ) from error
        raise ToolFailed(f"Host {url.host!r} cannot be reached: {problem[:200]}", code="execution_failed")

    async def _ask(self, url: WebUrl, address: str, most: int, *, more: Mapping[str, str]) -> _Answer | str:
        """Send a request. Returns the answer, or the target of a redirect."""
        import httpx2

        from metier.tls import choose_context

        pinned = pin_url(url, address)
        # Only gzip, because `_Unpacker` decompresses with a limit and knows no newer encodings.
        headers = {**pinned.headers, "User-Agent": _AGENT, "Accept": "text/*, */*", "Accept-Encoding": "gzip", **more}
        verify = self._tls or choose_context(pinned.url)
        # `trust_env=False`: a proxy would resolve the name again, on another machine.
        async with (
            httpx2.AsyncClient(verify=verify, trust_env=False, timeout=self._timeout_seconds) as client,
            client.stream("GET", pinned.url, headers=headers, extensions=pinned.extensions) as response,
        ):
            target = response.headers.get("location", "")
            if response.status_code in _REDIRECTS and target:
                return target
            if not response.is_success:
                reason = f"{response.status_code} {response.reason_phrase}".strip()
                raise ToolFailed(f"URL {url.text!r} answered {reason}", code="execution_failed")
            return await _read(url, response, most)


def _check_hop(before: WebUrl, url: WebUrl, guard: PathGuard) -> None:
    """Check a redirect. On the same site only deny rules apply; another host or port is judged like a new call."""
    # The usual upgrade from HTTP to HTTPS stays on the same site.
    is_same_port = url.port == before.port or (before.port, url.port) == (80, 443)
    if _strip(url.host) != _strip(before.host) or not is_same_port:
        guard.check(url.text, key="url")
    elif guard.hides(url.text, key="url"):
        raise ToolFailed(f"It redirects to {url.text!r}, which a rule denies", code="permission_denied")


def _strip(host: str) -> str:
    return host.removeprefix("www.")


async def _read(url: WebUrl, response: "httpx2.Response", most: int) -> _Answer:
    kind, _, parameters = response.headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    if kind and not _TEXT_TYPES.fullmatch(kind):
        raise ToolFailed(f"URL {url.text!r} is not text but {kind[:80]!r}", code="binary")
    unpack = _Unpacker(response.headers.get("content-encoding", ""))
    # Raw bytes, because the client's own decompression has no limit.
    data, is_cut = await _collect(response.aiter_raw(), unpack, most)
    if not kind and is_binary(data):
        raise ToolFailed(f"URL {url.text!r} is not text", code="binary")
    found = re.search(r"charset=[\"']?([\w-]+)", parameters)
    return _Answer(url, kind, found.group(1) if found else "", data, is_cut)


async def _collect(chunks: AsyncIterator[bytes], unpack: "_Unpacker", most: int) -> tuple[bytes, bool]:
    """Collect up to `most` decompressed bytes, so that a small compressed response can't fill the memory."""
    data = bytearray()
    async for chunk in chunks:
        # One more than wanted shows that there is more. Never 0, which zlib takes for no limit.
        data += unpack.add(chunk, most + 1 - len(data))
        if len(data) > most:
            return bytes(data[:most]), True
    return bytes(data), False


class _Unpacker:
    def __init__(self, encoding: str) -> None:
        word = encoding.strip().lower()
        if word not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise ToolFailed(f"The answer has the unsupported encoding {word[:40]!r}", code="execution_failed")
        # 32: detect a zlib or gzip header.
        self._inflate = None if word in {"", "identity"} else zlib.decompressobj(zlib.MAX_WBITS | 32)

    def add(self, chunk: bytes, most: int) -> bytes:
        if self._inflate is None:
            return chunk
        try:
            return self._inflate.decompress(chunk, most)
        except zlib.error as error:
            raise ToolFailed("The compressed answer is damaged", code="execution_failed") from error


def _render(answer: _Answer) -> str:
    text = _decode(answer)
    if answer.kind in _HTML_TYPES:
        text = extract_text(text, answer.url)
    notes = f"\n[cut after {len(answer.data)} bytes]" if answer.is_cut else ""
    if len(text) > MAX_CHARACTERS:
        notes += f"\n[{MAX_CHARACTERS} of {len(text)} characters]"
    return f"{answer.url.text}\n\n{text[:MAX_CHARACTERS]}{notes}"


def _decode(answer: _Answer) -> str:
    charset = answer.charset
    if not charset and answer.kind in _HTML_TYPES and (found := _META_CHARSET.search(answer.data[:4096])):
        charset = found.group(1).decode("ascii", "replace").lower()
    # As in browsers, a byte order mark overrides every declaration.
    if answer.data.startswith((b"\xff\xfe", b"\xfe\xff")):
        charset = "utf-16"
    known = charset if _CHARSETS.fullmatch(charset) else "utf-8"
    try:
        return answer.data.decode(known, "replace").removeprefix("\ufeff")
    except LookupError:
        return answer.data.decode("utf-8", "replace")


_RAW = frozenset({"script", "style", "title", "textarea", "xmp", "noframes"})
"""Elements whose content is not parsed as markup."""
_DROPPED = frozenset({"noscript", "template", "svg", "iframe", "object", "canvas", "select", "math", "audio", "video"})
_BLOCKS = frozenset(
    {
        "p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "ul", "ol", "table", "tr",
        "blockquote", "form", "figure", "figcaption", "dl", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "hr",
        "body", "fieldset", "details", "summary", "address",
    }
)  # fmt: skip
_BEFORE = {"li": "\n- ", "td": " | ", "th": " | ", "br": "\n"} | {f"h{n}": f"\n\n{'#' * n} " for n in range(1, 7)}
_MARKUP = re.compile(r"<(?=[a-zA-Z!?/])")
"""The start of markup. Any other `<` is text; a hostile page may have a million in a row."""
_TAG_NAME = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]{0,30})")
_VALUE = r"\s{0,9}=\s{0,9}(?:\"([^\"]{0,4000})\"|'([^']{0,4000})'|([^\s\"'>]{1,4000}))"
_HREF = re.compile(rf"[\s\"'/]href{_VALUE}", re.IGNORECASE)
_ALT = re.compile(rf"[\s\"'/]alt{_VALUE}", re.IGNORECASE)
_BLANKS = re.compile(r"[ \t\r\n\f\u00a0]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
_MAX_QUOTED_ENDS = 4
MAX_LINKS = 500
"""Maximum number of links with a URL; the others keep only their text."""


class _HtmlPiece(Struct, frozen=True):
    text: str
    name: str = ""
    """The element's name; empty for text."""
    is_end: bool = False


def extract_text(html: str, base: WebUrl) -> str:
    """Extract the text of a page. Links become `[text](URL)`; those that may not be fetched keep only their text."""
    reader = _PageReader(base)
    for piece in _split_html(html):
        reader.add(piece)
    return reader.render()


def _split_html(html: str) -> Iterator[_HtmlPiece]:
    """Split a page into tags and text. An unclosed tag ends the page."""
    place = 0
    while (opened := _MARKUP.search(html, place)) is not None:
        start = opened.start()
        yield _HtmlPiece(html[place:start])
        found = _TAG_NAME.match(html, start)
        end = _get_tag_end(html, start)
        if end < 0:
            return
        place = end
        if found is None:
            continue
        name, is_end = found.group(1).lower(), html[start + 1] == "/"
        yield _HtmlPiece(html[start:end], name, is_end)
        if name in _RAW and not is_end:
            stop = _get_element_end(html, name, end)
            yield _HtmlPiece(html[end:stop] if name == "title" else "")
            place = stop
    yield _HtmlPiece(html[place:])


def _get_tag_end(html: str, start: int) -> int:
    """Return the place after a tag or comment, or -1. A `>` in quotes is skipped, up to a limit for unclosed quotes."""
    if html.startswith("<!--", start):
        # From the second dash on, because `<!-->` is an empty comment.
        end = html.find("-->", start + 2)
        return end + 3 if end >= 0 else -1
    first = end = html.find(">", start)
    for _ in range(_MAX_QUOTED_ENDS):
        if end < 0:
            break
        tag = html[start:end]
        if tag.count('"') % 2 == 0 or "=" not in tag:
            return end + 1
        end = html.find(">", end + 1)
    return first + 1 if first >= 0 else -1


def _get_element_end(html: str, name: str, start: int) -> int:
    found = re.compile(f"</{name}", re.IGNORECASE).search(html, start)
    return found.start() if found else len(html)


class _PageReader:
    def __init__(self, base: WebUrl) -> None:
        self._base = base
        self._pieces: list[str] = []
        self._title = ""
        self._in_title = False
        self._dropped = ""
        """The element whose content is skipped until its end tag."""
        self._depth = 0
        self._in_code = False
        self._links = 0
        self._link: tuple[str, int] | None = None
        """The open link: its target, and the index of its first piece of text."""

    def add(self, piece: _HtmlPiece) -> None:
        if not piece.name:
            self._add_text(piece.text)
            return
        self._in_title = piece.name == "title" and not piece.is_end
        if self._dropped:
            if piece.name == self._dropped:
                self._depth += -1 if piece.is_end else 1
            self._dropped = self._dropped if self._depth else ""
        elif piece.is_end:
            self._close(piece.name)
        # An element without an end tag would hide the rest of the page.
        elif piece.name in _DROPPED and not piece.text.endswith("/>"):
            self._dropped, self._depth = piece.name, 1
        else:
            self._open(piece)

    def _add_text(self, text: str) -> None:
        plain = _unescape(text)
        if self._in_title:
            self._title = self._title or _BLANKS.sub(" ", plain).strip()
        elif not self._dropped:
            self._pieces.append(plain if self._in_code else _BLANKS.sub(" ", plain))

    def _open(self, piece: _HtmlPiece) -> None:
        name = piece.name
        if name == "pre" and not self._in_code:
            self._in_code = True
            self._pieces.append("\n\n```\n")
        elif name == "code" and not self._in_code:
            self._pieces.append("`")
        elif name == "a":
            self._close_link()  # links can't be nested
            if target := _find_value(_HREF, piece.text):
                self._link = (target, len(self._pieces))
        elif name == "img":
            self._pieces.append(_BLANKS.sub(" ", _find_value(_ALT, piece.text)))
        elif name in _BEFORE:
            self._pieces.append(_BEFORE[name])
        elif name in _BLOCKS:
            self._pieces.append("\n\n")

    def _close(self, name: str) -> None:
        if name == "pre" and self._in_code:
            self._in_code = False
            self._pieces.append("\n```\n\n")
        elif name == "code" and not self._in_code:
            self._pieces.append("`")
        elif name == "a":
            self._close_link()
        elif name in _BLOCKS:
            self._pieces.append("\n\n")

    def _close_link(self) -> None:
        if self._link is None:
            return
        (target, start), self._link = self._link, None
        self._links += 1
        if self._links > MAX_LINKS:
            return
        words = _BLANKS.sub(" ", "".join(self._pieces[start:])).strip()
        if not words:
            return
        try:
            self._pieces[start:] = [f"[{words}]({join_url(self._base, target.strip()).text})"]
        except ToolFailed:
            return

    def render(self) -> str:
        lines: list[str] = []
        is_code = False
        for line in "".join(self._pieces).split("\n"):
            if line.strip() == "```":
                is_code = not is_code
            lines.append(line.rstrip() if is_code else line.strip())
        body = _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()
        return f"Title: {self._title}\n\n{body}".strip() if self._title else body


def _find_value(attribute: re.Pattern[str], tag: str) -> str:
    found = attribute.search(tag)
    return _unescape(next((value for value in found.groups() if value is not None), "")) if found else ""


def _unescape(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a character reference with too many digits
        return text
