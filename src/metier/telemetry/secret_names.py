"""Secrets identified by the name in front of them: `password=…`, `"api_key": "…"`, `Authorization: Bearer …`. Pure.

The value decides too: code, placeholders and ordinary words after such a name are not secrets.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

MARK = "***REDACTED***"


def word_set(text: str) -> frozenset[str]:
    """Split a text into a set of words, for readable tables."""
    return frozenset(text.split())


_ORDINARY = word_set(
    """
    null none nil undefined true false yes no on off str string int integer float bool boolean bytes object any
    optional required unset empty missing invalid valid expired present absent hidden masked redacted secret password
    token set unknown default incorrect wrong rejected accepted changed here below above see the a an is are not and or
    text number array list dict self cls secretstr bearer basic digest
    unauthorized forbidden denied failed authentication authorization error encrypted plaintext disabled enabled
    """
)
_PLACEHOLDER = re.compile(
    r"""\A(?:\$\{[^}]*\}.*|\$\(.*|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%|%\(?\w*\)?[sdr]|\{\{.*\}\}|\{[\w.!:\[\]()'"]*\}"""
    r"""|<[^>]*>?|\[[^\]]*\]|\*{2,}|\.{2,}|…|[-_]+|@[\w.]+|&\w+|\|[+-]?|>[+-]?)\Z""",
    re.DOTALL,
)
_CODE = re.compile(
    r"""\A(?: !? (?:await\ )? [A-Za-z_][\w.]* (?:\(.*|\[.*)                # call(…), name[…]
        | (?:self|this|os|process|config|settings|env|args|options|opts|params|request|req|ctx|cfg|secrets|vars|var
           |local|data|kwargs|props|state|user|module|each|input|github|steps|st|app|context|credentials|auth)
          \.[A-Za-z_][\w.?]*                                              # config.token
        | [a-z_]+(?:\.[a-z_]+)*\.(?:key|token|secret|password|api_key|value)  # connection.key
        | [A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+                                   # NAME_OF_A_VARIABLE
        | [A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\|\|.*                            # n.password||""
        | [A-Za-z_]\w*(?:\[[\w,\ |]*\])?\ ?\|.*                           # str | None
        | (?:[a-z]+_)+(?:password|passwd|token|key|secret|env|name|id|file|path)     # some_token
        | [a-z]+(?:[A-Z][a-z]+)*(?:Password|Token|Key|Secret|Env|Name|Id|File|Path)  # someToken
        | (?:\.{0,2}|~)?/[\w.-]+(?:/[\w.-]+)+                             # /run/secrets/name
        )\Z""",
    re.VERBOSE | re.DOTALL,
)
_NAME_OF_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|SECRET|TOKEN|PASSWORD|ENV|NAME|ID)\Z")
_TEMPLATE = re.compile(r"\{\{|%\(|\$\{[A-Za-z_]\w*\}|\{[a-z_]+\}|<%")
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_ODD = re.compile(r"[!@#$%^*+=~?]")
_FAKE = re.compile(r"(?i)\A(?:your|my|insert|enter|put|add|replace|example|dummy|sample)[-_ ]|not_long_enough")


def is_ordinary_word(value: str) -> bool:
    """Return True for words that documentation and code use in place of a secret."""
    return value.lower().strip("!?:,. ") in _ORDINARY


def is_code_or_placeholder(value: str, *, quoted: bool) -> bool:
    """Return True for code and placeholders in place of a secret."""
    if MARK in value or value.endswith(("...", "…")) or _PLACEHOLDER.match(value) or _TEMPLATE.search(value):
        return True
    if _FAKE.search(value) and not any(character.isdigit() for character in value):
        return True
    if quoted:
        return bool(_NAME_OF_VARIABLE.match(value))
    return bool(_CODE.match(value))


def looks_random(value: str) -> bool:
    """Return True for text unlike prose: letters with digits, mixed case, or unusual punctuation."""
    if len(value) < 6:
        return False
    letters = _LETTER.search(value) is not None
    if _DIGIT.search(value):
        return letters or (len(value) >= 8 and value.isdigit())
    if not letters or " " in value:
        return False
    is_mixed = value[1:].lower() != value[1:] and value[1:].upper() != value[1:]
    return (is_mixed and len(value) >= 16) or _ODD.search(value.rstrip("!?.")) is not None


class NamePlace(NamedTuple):
    """A position inside a name, the end of the name, and whether a space separates it from its value."""

    inside: int
    end: int
    spaced: bool = False


class NamedSecret(NamedTuple):
    """The position of a value. `context` is the start of its name."""

    kind: str
    context: int
    start: int
    end: int


_LAST_WORDS = word_set(
    "password passwd passw passphrase passcode pwd secret token apikey credential credentials authorization "
    "cookie psk accesskey secretkey privatekey authtoken accesstoken"
)
"""Last words of the names of secrets."""
_KEY_KINDS = word_set(
    "api access private secret auth encryption encrypt signing sign master account shared license client service admin "
    "deploy storage ssh webhook hmac jwt app consumer subscription security session crypto ingest preshared psk "
    # vendors
    "openai anthropic claude gemini google gcp aws azure cohere mistral groq deepseek deepl elevenlabs tavily serpapi "
    "huggingface replicate openrouter perplexity pinecone stripe paypal square plaid twilio sendgrid mailgun mailchimp "
    "slack discord telegram github gitlab bitbucket heroku netlify vercel cloudflare fastly digitalocean linode dd "
    "datadog newrelic sentry grafana splunk sumologic launchdarkly okta auth0 algolia adafruit beamer bittrex coinbase "
    "codecov etsy finnhub freshbooks intercom kraken kucoin lob mapbox mattermost messagebird nytimes rapidapi "
    "sendbird squarespace trello twitch twitter yandex zendesk hubspot shopify alchemy infura etherscan binance"
)
"""Words before `key` that make it a secret, unlike `primary_key`."""
_ORDINARY_TOKENS = word_set("max min page next num pad eos bos unk sep cls mask stop special prev continuation")
"""Words before `token` that mean a token of text or of a list, such as `max_token`."""
_PASS_OWNERS = word_set("db database user admin root mysql pg postgres redis smtp mail email ftp ssh login http")
"""Words before `pass` that make it a password."""
_QUALIFIERS = word_set(
    "prod production dev development staging stage test live old new backup base primary value "
    "data b64 base64 hex plain plaintext raw"
)
"""Last words that are ignored, such as in `PASSWORD_PROD`."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_BACKWARDS = re.compile(r"[\w.-]*", re.ASCII)
_AFTER = re.compile(r"[\w-]{0,40}", re.ASCII)
_SPACED_KEY = re.compile(r"(?:^|[^\w])(\w{2,12}) \Z", re.ASCII)
_MAX_NAME = 64

# Each alternative starts with a letter and has its lookbehind after it, so that the engine can skip to these letters.
_NAME_PLACE = re.compile(
    r"""
    (?: key(?:(?<=[\w.-]key)|(?<=\w[ ]key))
      | token(?!s) | cookie | pass(?![aeit]) | pwd | psk | credential | secret | authorization
    )
    [\w-]{0,40}+
    (?=  # a separator in front of a value
        \\*["'`]?\]?[ \t]{0,8}(?:[=:,]|%3)
      | [ \t](?:is|was)[: \t]
      | [ \t]{1,4}["'\\rbuf]
      | >
    )
    """,
    re.ASCII | re.VERBOSE,
)
_SPACED_PLACE = re.compile(
    r"""
    (?: -(?<![\w.-]-)(?<!sshpass[ ]-)[\w.-]{4,64}+(?=[ \t])  # the option of a command
      | env[ ][\w.-]{1,64}+(?=[ \t])
      | login\s{1,8}\S{1,64}\s{1,8}passw(?:or)?d(?=[ \t])
      | (?P<bearer>bearer[ \t])
    )
    """,
    re.ASCII | re.VERBOSE,
)
_SEPARATOR = re.compile(
    r"""\\*["'`]?\]?[ \t]{0,8}
    (?: (?P<typed>:[ ]?[A-Za-z_][\w\[\]|.]{0,40}[ ]?=(?!=))
      | (?P<sep>=>|:=|={1,3}|(?<![ ]):(?!:|//)|:(?![:']|//)|%3[DdAa])
      | (?P<comma>(?<=["']),)
    )[ \t]{0,8}""",
    re.VERBOSE,
)
_CALL = re.compile(r"""\w\(["']\Z""")
_SPACE = re.compile(r"[ \t]{1,4}")
_IS = re.compile(r"[ \t](?:is|was)(?::|[ \t])[ \t]?")
_SCHEME = re.compile(
    r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey|AWS4-HMAC-SHA256|Bot|key|SSWS|OAuth|Splunk|FlyV1)[ \t]{1,4}",
    re.IGNORECASE,
)
_BEARER = re.compile(r"bearer[ \t]{1,4}(?P<v>[A-Za-z0-9._~+/-]{8,}=*)", re.IGNORECASE)
_QUOTED = re.compile(r"""(?P<open>[rbuf]{0,2}\\*(?P<mark>["'`]))""")
_BARE = re.compile(r"""[^\s"'`<>&\\]+""")
_TO_LINE_END = re.compile(r"[^\r\n\"'\\]+")
_NEXT_PAIR = re.compile(r"[,;](?=[ \t]*[\w.-]{1,40}[ \t]?[=:]|[ \t]|$)", re.ASCII)
_MAX_QUOTED = 8192
_REACH = 96
"""Maximum distance from a name to its value, plus the characters needed to classify an unquoted value."""
_OPENED = re.compile(r"""[^\n"'`]{0,80}(["'`])""")
_MAX_CLASSIFIED = 64
"""Number of characters by which an unquoted value is classified. The whole value is hidden."""


def split_words(name: str) -> tuple[str, ...]:
    """Split a name: `dbPassword`, `DB_PASSWORD` and `db-password` are all `db`, `password`."""
    return tuple(word.lower() for word in _WORDS.findall(name))


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return True for the name of a secret: `MY_API_KEY`, `x-api-key`, `db.password2`, but not `max_tokens`."""
    words = list(split_words(name))
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _QUALIFIERS):
        words.pop()
    if not words:
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "key":
        return before in _KEY_KINDS
    if words[-1] == "token":
        return before not in _ORDINARY_TOKENS
    if words[-1] == "pass":
        return before in _PASS_OWNERS
    return words[-1] in _LAST_WORDS or words[-1].endswith(("password", "passwd", "apikey", "authtoken", "accesstoken"))


def lower_ascii(text: str) -> str:
    """Lowercase only A to Z, so that every character keeps its position."""
    if text.isascii():
        return text.lower()
    # `str.lower` can change the length: `İ` becomes two characters. `bytes.lower` changes only ASCII letters.
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def list_name_places(lowered: str) -> list[NamePlace]:
    """List the words of `lower_ascii(text)` that may be secret names followed by a value, in order."""
    places = [NamePlace(*match.span()) for match in _NAME_PLACE.finditer(lowered)]
    places += [NamePlace(*match.span(), spaced=match["bearer"] is None) for match in _SPACED_PLACE.finditer(lowered)]
    return sorted(places)


class NameRules:
    """Finds values by configured names and, unless disabled, by generic ones."""

    def __init__(self, *, names: Iterable[str] = (), generic: bool = True) -> None:
        configured = tuple(names)
        self._configured = frozenset(canonical for name in configured if (canonical := _canonical(name)))
        self._generic = generic
        self._literals = {lower_ascii(word) for name in configured for word in re.findall(r"[^\W_]+", name)[-1:]}

    def covers(self, name: str) -> bool:
        return self._is_configured(name) or (self._generic and is_secret_name(name))

    def find(self, text: str, lowered: str, places: list[NamePlace]) -> Iterator[NamedSecret]:
        """Yield the values of secret names. `places` has the possible generic names."""
        seen = -1
        for place in self._all_places(lowered, places):
            if place.inside < seen:
                continue
            seen = max(seen, place.end)
            if lowered.startswith("bearer", place.inside):
                yield from _bearer(text, place.inside)
                continue
            found = self._value_of(text, place)
            if found is not None:
                seen = max(seen, found.end)
                yield found

    def _all_places(self, lowered: str, places: list[NamePlace]) -> list[NamePlace]:
        generic = places if self._generic else []
        configured = [place for literal in self._literals for place in _places_of(lowered, literal)]
        return sorted([*generic, *configured]) if configured else generic

    def get_open(self, text: str, lowered: str, places: list[NamePlace]) -> int:
        """Return the start of the first incomplete value, or the end of the text."""
        for place in self._all_places(lowered, places):
            is_secret = lowered.startswith("bearer", place.inside) or self._read_name(text, place) is not None
            if is_secret and _may_continue(text, place.end):
                return place.end
        return len(text)

    def _read_name(self, text: str, place: NamePlace) -> "_Name | None":
        """Return the name at a position, or None if it isn't the name of a secret."""
        start = _spaced_start(text, place) if place.spaced else _name_start(text, place.inside)
        name = text[start : place.end]
        # `key` alone says too little, so the word before it counts too: `API key: …`.
        if name[-3:].lower() == "key" and len(name.strip("-_.")) == 3:
            spaced = _SPACED_KEY.search(text, max(0, start - 16), start)
            name = f"{spaced[1]}_{name}" if spaced else name
        is_secret = self._is_configured(name) or (self._generic and is_secret_name(name))
        return _Name(name, start, place.end) if is_secret else None

    def _value_of(self, text: str, place: NamePlace) -> NamedSecret | None:
        found_name = self._read_name(text, place)
        if found_name is None:
            return None
        start, configured = found_name.start, self._is_configured(found_name.text)
        span = _find_value(text, found_name, configured=configured)
        if span is None and place.spaced and (space := _SPACE.match(text, place.end)):
            span = _quoted(text, space.end(), found_name) or _bare(text, space.end(), strict=False, name=found_name)
        return None if span is None else NamedSecret("name", start, *span)

    def _is_configured(self, name: str) -> bool:
        return bool(self._configured) and _canonical(name) in self._configured


class _Name(NamedTuple):
    text: str
    start: int
    end: int

    @property
    def last(self) -> str:
        # Compared with the value: `self.token = token` assigns a variable.
        return self.text.rpartition(".")[2].lower()

    @property
    def is_password(self) -> bool:
        return "pass" in self.text.lower() or "pwd" in self.text.lower()


def _may_continue(text: str, end: int) -> bool:
    """Return True if the value of a name ending here may be incomplete: it is near the end, or a quote is open."""
    line = text.find("\n", end)
    if line >= 0 and text[end : end + 1] != ">":
        return False
    if len(text) - end <= _REACH:
        return True
    if text[end : end + 1] == ">":
        return len(text) - end <= _MAX_QUOTED and text.find("<", end) < 0
    opened = _OPENED.match(text, end)
    return opened is not None and len(text) - end <= _MAX_QUOTED and text.find(opened[1], opened.end()) < 0


def _canonical(name: str) -> str:
    return "_".join(re.findall(r"[^\W_]+", name.strip("-.").lower()))


def _places_of(lowered: str, literal: str) -> Iterator[NamePlace]:
    at = lowered.find(literal)
    while at >= 0:
        after = _AFTER.match(lowered, at + len(literal))
        yield NamePlace(at, after.end() if after else at + len(literal))
        at = lowered.find(literal, at + len(literal))


def _name_start(text: str, position: int) -> int:
    # Reversed, because `re` cannot match backwards.
    before = _BACKWARDS.match(text[max(0, position - _MAX_NAME) : position][::-1])
    start = position - (before.end() if before else 0)
    if start < position and text[start - 1 : start] == "\\" and text[start] in "nrt":
        start += 1  # an escaped line feed
    return start


def _bearer(text: str, position: int) -> Iterator[NamedSecret]:
    match = _BEARER.match(text, position)
    if match and looks_random(match["v"]):
        yield NamedSecret("bearer", position, match.start("v"), match.end("v"))


def _find_value(text: str, name: _Name, *, configured: bool) -> tuple[int, int] | None:
    """Return the position of the name's value, or None if there is none or it isn't a secret."""
    if text[name.start - 1 : name.start] == "<" and text[name.end : name.end + 1] == ">":
        return _element(text, name)
    separator = _SEPARATOR.match(text, name.end)
    # A comma precedes a value only between the arguments of a call: `set("password", "…")`.
    if separator and separator["comma"] and not _CALL.search(text, max(0, name.start - 16), name.start):
        return None
    if separator:
        if "cookie" in name.text.lower():
            return _header(text, separator.end())
        start = separator.end()
        if scheme := _SCHEME.match(text, _skip_quote(text, start)) if "auth" in name.text.lower() else None:
            return _bare(text, scheme.end(), strict=False, configured=True)
        tight = separator["sep"] in {"=", "%3D", "%3d"} and text.startswith(("=", "%3"), separator.start())
        quoted = _quoted(text, start, name)
        # Code compares with ordinary words: `token == "end"`.
        if quoted and separator["sep"] in {"==", "==="} and not looks_random(text[slice(*quoted)]):
            return None
        return quoted or _bare(text, start, strict=not tight, configured=configured, name=name)
    return _spaced(text, name)


def _spaced(text: str, name: _Name) -> tuple[int, int] | None:
    """Find the value in phrases such as `password is value` and `PASSWORD 'value'`."""
    if said := _IS.match(text, name.end):
        return _quoted(text, said.end(), name) or _bare(text, said.end(), strict=True, name=name)
    space = _SPACE.match(text, name.end)
    return _quoted(text, space.end(), name) if space and name.is_password else None


def _spaced_start(text: str, place: NamePlace) -> int:
    """Return the start of a flag, or of the last word."""
    return max(text.rfind(blank, place.inside, place.end) for blank in (" ", "\t", "\n")) + 1 or place.inside


def _skip_quote(text: str, at: int) -> int:
    opened = _QUOTED.match(text, at)
    return opened.end() if opened else at


def _element(text: str, name: _Name) -> tuple[int, int] | None:
    start = name.end + 1
    end = text.find("<", start, start + _MAX_QUOTED)
    value = text[start:end].strip() if end > start else ""
    return (start, end) if value and not is_code_or_placeholder(value, quoted=True) else None


def _header(text: str, start: int) -> tuple[int, int] | None:
    begin = _skip_quote(text, start)
    head = _TO_LINE_END.match(text, begin, begin + _MAX_CLASSIFIED)
    if not head or "=" not in head[0] or not looks_random(head[0]):
        return None
    whole = _TO_LINE_END.match(text, begin)
    return whole.span() if whole else None


def _quoted(text: str, start: int, name: _Name) -> tuple[int, int] | None:
    opened = _QUOTED.match(text, start)
    if not opened:
        return None
    begin = opened.end()
    closing = opened["open"].lstrip("rbuf")
    end = _closing(text, begin, closing)
    value = text[begin:end]
    if not value.strip() or is_code_or_placeholder(value, quoted=True) or is_ordinary_word(value):
        return None
    if not text.startswith(closing, end) and not looks_random(value):
        return None
    if " " in value.strip() and "phrase" not in name.text.lower() and not looks_random(value):
        return None
    # `password="password"` is a placeholder.
    return (begin, end) if value.lower() != name.text.lower() else None


def _closing(text: str, begin: int, closing: str) -> int:
    """Return the end of a quoted value: its closing quote, skipping escaped ones, or the end of the line."""
    newline = text.find("\n", begin, begin + _MAX_QUOTED)
    limit = newline if newline >= 0 else min(len(text), begin + _MAX_QUOTED)
    at = text.find(closing, begin, limit)
    while at > begin and len(closing) == 1 and text[at - 1] == "\\" and text[at - 2 : at] != "\\\\":
        at = text.find(closing, at + 1, limit)
    return at if at >= 0 else limit


def _bare(
    text: str, start: int, *, strict: bool, configured: bool = False, name: _Name | None = None
) -> tuple[int, int] | None:
    """Find an unquoted value. `strict` only accepts random text, because prose has colons too."""
    match = _BARE.match(text, start, start + _MAX_CLASSIFIED)
    if not match:
        return None
    span = _classify(text, match, strict=strict and not configured, name=name)
    whole = _BARE.match(text, start) if span and span[1] == start + _MAX_CLASSIFIED else None
    return whole.span() if whole else span


def _classify(text: str, match: re.Match[str], *, strict: bool, name: _Name | None) -> tuple[int, int] | None:
    """Return the position of the value at the start of a match, or None if it is no secret."""
    start = match.start()
    pair = _NEXT_PAIR.search(match[0])
    value = match[0][: pair.start()] if pair else match[0]
    value = value if value.endswith("()") else value.rstrip(",;.)]}:")
    span = (start, start + len(value))
    if not value or is_ordinary_word(value) or (name and value.lower() == name.last):
        return None
    if strict and not looks_random(value) and not (name and name.is_password and _is_alone(text, name, match.end())):
        return None
    is_harmless = any(is_code_or_placeholder(form, quoted=False) for form in {value, match[0]})
    return None if is_harmless else span


def _is_alone(text: str, name: _Name, end: int) -> bool:
    """Return True for a line that is only `name: value`, as in YAML."""
    before = text[
        max(text.rfind("\n", max(0, name.start - _MAX_NAME), name.start) + 1, name.start - _MAX_NAME) : name.start
    ]
    return not before.strip() and name.text.islower() and text[end : end + 1] in {"", "\n", "\r"}
