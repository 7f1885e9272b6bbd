"""Long random words without a known format: keys of new vendors, session cookies, generated passwords. Pure.

Randomness is measured by the changes between upper case, lower case and digits. Hashes, ids and encoded data are random
too, so the context decides: a related word nearby, a vendor-like prefix, or, for words that cannot be a hash, a
sentence around them.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from metier.telemetry.formats import Span
from metier.telemetry.secret_names import word_set

type Degree = Literal["mixed", "plain", "hex"]
"""`mixed`: both cases and digits; `plain`: one case and digits; `hex`: may be a hash."""

_CORE = re.compile(rb"[A-Za-z0-9]{15,}")
_HEX_BYTES = re.compile(rb"[0-9a-f]+|[0-9A-F]+")
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_LEFT = re.compile(r"[A-Za-z0-9_+/~.-]*")
_RIGHT = re.compile(r"[A-Za-z0-9_+/~.-]*={0,2}")
_PREFIX = re.compile(r"(?:[A-Za-z][A-Za-z0-9]{1,11}[_-]){1,3}(?=[A-Za-z0-9_-]{20,}\Z)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UUID_BYTES = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RUNS = re.compile(r"A+|a+|0+")
_FILE = re.compile(r"\.[a-z]{1,5}\Z")
_CLASSES = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "A" * 26 + "a" * 26 + "0" * 10, "_+/=~.-"
)
_NAMES = re.compile(r"[a-z0-9]+")
_RELATED = word_set(
    """
    api apikey auth authenticate bearer bot cookie cookies cred creds credential credentials jwt key keys leaked license
    login otp pass passcode passphrase passwd password pat phpsessid jsessionid psk pw pwd revoke rotate secret secrets
    sess sessid session sessionid sid signin signing token tokens vault webhook
    """
)
"""Words that suggest a secret nearby."""
_STRONG_WORDS = ("token", "secret", "key", "passw", "passp", "cookie", "sess", "sid", "credential", "bearer", "pat")
_RELATED_TO_HEX = (*_STRONG_WORDS, "rotate", "revoke", "leaked", "authenticate")
_STRONG = re.compile(
    r"(?:tokens?|secrets?|keys?|password|passphrase|cookies?|sess(?:ion|id)?(?:[ _-]?id)?|sid|credentials?|bearer|pat)"
    r"""["'`]?\s{0,2}(?:is|was|=|:|->|=>)?\s{0,2}["'`(]?\Z"""
)
_HARMLESS = word_set(
    """
    sha sha1 sha256 sha384 sha512 md5 hash hashes digest checksum integrity commit revision etag fingerprint blob tree
    base64 ssh ecdsa ed25519 public cert certificate nonce uuid trace span call toolu msg resp chatcmpl req run request
    example cache version build gpg recv font svg png pubkey thumbprint signature chunk anchor placeholder
    """
)
"""Words near hashes, ids and encoded data, which are not secrets."""
_VENDORS = word_set(
    """
    adyen agora airtable alchemy algolia amplitude anthropic appcenter assemblyai auth0 axiom azure betterstack binance
    bitrise bittrex braintree bugsnag circleci cloudflare codecov codemagic cohere coinbase coinmarketcap confluent
    contentful coralogix customerio datadog deepgram deepseek digitalocean discord doppler droneci dropbox dynatrace
    elevenlabs etherscan etsy exa facebook fal fastly finicity finnhub flickr freshbooks gitter heroku hetzner hubspot
    ibm infura intercom iterable jfrog klaviyo kraken kucoin launchdarkly linode livekit logzio looker loops mailchimp
    mailgun mailjet mandrill mapbox mattermost meilisearch meraki messagebird mistral mixpanel mux netlify okta openai
    opsgenie optimizely ovh pagerduty paypal pinecone plaid plivo postmark privateai pubnub pusher qdrant railway
    rapidapi rollbar scaleway segment semgrep sendbird sendgrid sentry serpapi shopify sidekiq slack snyk sonarqube
    sparkpost spotify squarespace statuspage strava stripe sumologic telnyx todoist together travis trello twilio twitch
    twitter typesense vercel vonage vultr weather weaviate webex zendesk zoom
    """
)
"""Vendors with keys that are a plain hash, a UUID or a short word."""
_VENDOR_BEFORE = re.compile(r"([a-z0-9]{2,20})(?:[ _-](?:id|key|token|secret|api))?[\"'`]?\s{0,2}[:=]\s{0,2}[\"'`]?\Z")
_STRONG_BEFORE_UUID = re.compile(
    r"(?:tokens?|secrets?|(?:api|access|license|account)[ _-]?keys?|passwords?|passphrase|credentials?|bearer)"
    r"""["'`]?\s{0,2}(?:is|was|=|:|->|=>)?\s{0,2}["'`(]?\Z"""
)
"""Like `_STRONG`, without words that precede ids, such as a session or a plain key."""
_ASKING = word_set(
    "key keys token tokens secret secrets password credential credentials rotate revoke leaked authenticate"
)
"""Words that, together with a vendor, mark a plain hash or UUID as a key."""
_IN_QUERY = re.compile(r"(?:token|key|secret|sig|auth|session|code)=\Z")
_CODE = re.compile(r"[;{}=<>\\]|\w\(")
_IDS = re.compile(r"(?:toolu|call|msg|req|resp|run|chatcmpl|fc|rs|evt|srvtoolu|batch|file|gen)[_-]", re.IGNORECASE)
"""Prefixes of ids of calls, messages and requests."""

_MIN_MIXED = 0.36
_MIN_PLAIN = 0.24
"""Minimum changes between character classes per character. Random words have about 0.6 and 0.4, identifiers 0.2."""
_ALONE: dict[Degree, int] = {"mixed": 20, "plain": 24}
"""Minimum length of a word in a sentence to count as a secret without a related word. A hash never does."""
_MAX_WORD = 512
_BEFORE = 72
_CLOSE_BEFORE = 28
_AFTER = 32
"""Lengths of the context around a word, in characters."""


class _Word(NamedTuple):
    text: str
    start: int
    end: int
    degree: Degree


def list_random_words(text: str, lowered: str, words: bytes) -> Iterator[Span]:
    """Yield the random words whose context marks them as secrets.

    `lowered` is `lower_ascii(text)`; `words` is the result of `get_long_words`.
    """
    for core in dict.fromkeys(_CORE.findall(words)):
        # A cheap test first: `classify_randomness` requires both letters and digits.
        if core.isalpha() or core.isdigit():
            continue
        if _HEX_BYTES.fullmatch(core) and not _may_be_hex_secret(lowered, words, core):
            continue
        for word in _list_words(text, core.decode()):
            if _is_secret(lowered, word):
                yield Span(word.start, word.end, word.start, "random")
    for uuid in dict.fromkeys(_UUID_BYTES.findall(words)):
        yield from _list_uuid(text, lowered, uuid.decode())


def classify_randomness(word: str) -> Degree | None:
    """Classify a random word. Return None for ordinary words."""
    if word.startswith("/") or word.count("/") > 3 or (word.count("-") > 3 and _UUID.search(word)):
        return None
    if "." in word and _FILE.search(word):
        return None
    shape = word.translate(_CLASSES)
    upper, lower, digits = shape.count("A"), shape.count("a"), shape.count("0")
    if digits < 2 or upper + lower < 4:
        return None
    if not (upper and lower) and _HEX.fullmatch(word):
        return "hex"
    is_mixed = min(upper, lower) >= 2
    changes = (len(_RUNS.findall(shape)) - 1) / len(shape)
    # A random word has more different characters than that; a repeated pattern has fewer.
    if changes < (_MIN_MIXED if is_mixed else _MIN_PLAIN) or len(set(word)) < len(word) ** 0.5 + 3:
        return None
    if is_mixed:
        return "mixed"
    return "plain" if digits >= 4 else None


def _may_be_hex_secret(lowered: str, words: bytes, core: bytes) -> bool:
    # A cheap test first: most hexadecimal words are hashes without any related word in the text.
    return b"_" + core in words or any(word in lowered for word in _RELATED_TO_HEX)


def _list_words(text: str, core: str) -> Iterator[_Word]:
    """Yield the random words around a core."""
    degrees: dict[str, Degree | None] = {}
    at = text.find(core)
    while at >= 0:
        # Reversed, because an expression can't be matched backwards from a position.
        before = _LEFT.match(text[max(0, at - _MAX_WORD) : at][::-1])
        start = at - (before.end() if before else 0)
        if text[start - 1 : start] == "\\" and text[start] in "nrt":
            start += 1  # an escaped line feed
        after = _RIGHT.match(text, at + len(core), at + len(core) + _MAX_WORD)
        whole = text[start : after.end() if after else at + len(core)].rstrip("~-_+/.")
        if whole not in degrees:
            degrees[whole] = classify_randomness(whole.rstrip("="))
        if degree := degrees[whole]:
            yield _Word(whole, start, start + len(whole), degree)
        at = text.find(core, max(start + len(whole), at + len(core)))


def _is_secret(lowered: str, word: _Word) -> bool:
    if _IDS.match(word.text):
        return False
    line = lowered.rfind("\n", 0, word.start) + 1
    before = lowered[max(line, word.start - _BEFORE) : word.start]
    strong = _STRONG.search(before[-_CLOSE_BEFORE:]) is not None
    names = frozenset(_NAMES.findall(before + lowered[word.start : word.end].rpartition("_")[0]))
    if word.degree == "hex":
        is_named = strong or _is_vendor_key(lowered, word.start, word.end)
        return is_named and len(word.text) >= 24 and names.isdisjoint(_HARMLESS)
    # In a URL, random words are paths and IDs, except in a parameter with a telling name.
    if "://" in before.rpartition(" ")[2]:
        return _IN_QUERY.search(before) is not None
    if not strong and not names.isdisjoint(_HARMLESS):
        return False
    vendor = _VENDOR_BEFORE.search(before)
    strong = strong or (vendor is not None and vendor[1] in _VENDORS)
    if strong or _PREFIX.match(word.text) or not names.isdisjoint(_RELATED):
        return word.degree == "mixed" or len(word.text) >= 24
    end = lowered.find("\n", word.end)
    after = lowered[word.end : min(end if end >= 0 else len(lowered), word.end + _AFTER)]
    if not _RELATED.isdisjoint(_NAMES.findall(after)):
        return word.degree == "mixed" or len(word.text) >= 24
    return len(word.text) >= _ALONE[word.degree] and _is_sentence(before, after)


def _list_uuid(text: str, lowered: str, uuid: str) -> Iterator[Span]:
    at = text.find(uuid)
    while at >= 0:
        if _is_secret_uuid(lowered, at, at + len(uuid)):
            yield Span(at, at + len(uuid), at, "random")
        at = text.find(uuid, at + len(uuid))


def _is_secret_uuid(lowered: str, start: int, end: int) -> bool:
    # A UUID is an id, unless the word before it, or a vendor and a related word around it, marks it as a key.
    line = lowered.rfind("\n", 0, start) + 1
    before = lowered[max(line, start - _BEFORE) : start]
    if "://" in before.rpartition(" ")[2] or not _HARMLESS.isdisjoint(_NAMES.findall(before)):
        return False
    return _STRONG_BEFORE_UUID.search(before[-_CLOSE_BEFORE:]) is not None or _is_vendor_key(lowered, start, end)


def _is_vendor_key(lowered: str, start: int, end: int) -> bool:
    """Return True if a vendor and a word about keys are near the word, on the same line."""
    line, last = lowered.rfind("\n", 0, start) + 1, lowered.find("\n", end)
    around = lowered[max(line, start - _BEFORE) : start]
    around += " " + lowered[end : min(last if last >= 0 else len(lowered), end + _AFTER)]
    names = frozenset(_NAMES.findall(around))
    return not (names.isdisjoint(_VENDORS) or names.isdisjoint(_ASKING)) and names.isdisjoint(_HARMLESS)


def _is_sentence(before: str, after: str) -> bool:
    """Return True if the surrounding text has words and no sign of code or encoded data."""
    around = f"{before} {after}"
    return sum(word.isalpha() for word in around.split()) >= 2 and not _CODE.search(around)
