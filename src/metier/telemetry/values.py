"""Classification of the values of secret names: secret, code, placeholder or ordinary word. Pure."""

import re

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
