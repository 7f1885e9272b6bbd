"""Sanitization of outside text: it can't control a terminal, hide characters or fake a line.

Complete terminal sequences (colors, cursor moves, hyperlinks) are removed; a hyperlink keeps its text. Every other
control, bidi and invisible character, unfinished sequence and lone surrogate becomes a visible escape such as `\\x1b`
or `\\u202e`. Sequences with a message for the terminal (clipboard, title, device control) leave a visible trace without
the message. Joiners and selectors stay if a script or an emoji needs them. Sanitizing is idempotent.
"""

import re

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNSAFE = f"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_INVISIBLE}"
_EMOJI = "\u00a9\u00ae\u203c\u2049\u2100-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_JOINING = (
    "\u0600-\u061b\u061d-\u06ff\u0750-\u077f\u0840-\u0dff\u0e80-\u109f\u1780-\u17b3\u1800-\u180a\u1810-\u18af"
    "\ufb50-\ufdff\ufe70-\ufefc"
)
_HAN = "\u2e80-\u2fff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

SUSPECT = re.compile(f"[{_UNSAFE}]")
_PARTS = re.compile(
    # One character class first, which the engine finds quickly; the groups after it classify the character.
    f"[{_UNSAFE}](?:"
    "(?P<keep>"
    # Keycaps, and selectors that show an emoji as text or in color.
    f"(?<=[0-9#*]\ufe0f)\u20e3|(?<=[{_EMOJI}][\ufe0e\ufe0f])"
    # A joiner between two emoji, which are shown as one, such as a family.
    f"|(?:(?<=[{_EMOJI}]\u200d)|(?<=[{_EMOJI}]\ufe0f\u200d))(?=[{_EMOJI}])"
    # Joiners in scripts such as Arabic and Devanagari, where they change the letters.
    f"|(?<=[{_JOINING}][\u200c\u200d])"
    # Variants of Han characters.
    f"|(?<=[{_HAN}][\ufe00-\ufe02\U000e0100-\U000e01ef])"
    # Flags of regions, such as Scotland: a black flag, the letters as tags, and a tag that ends them.
    "|(?<=\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a])"
    "[\U000e0030-\U000e0039\U000e0061-\U000e007a]{2,5}\U000e007f"
    ")"
    "|(?P<newline>(?<=\r)\n)"
    # Complete CSI sequences of ECMA-48, such as colors. 0x9b means ESC [ in one character.
    "|(?P<drop>(?:(?<=\x1b)\\[|(?<=\x9b))[0-?]{0,64}[ -/]{0,8}[@-~]"
    # OSC 8, a hyperlink. Terminals accept BEL and ST as its end.
    "|(?:(?<=\x1b)\\]|(?<=\x9d))8;[^\x00-\x1f\x7f-\x9f]{0,4096}(?:\x07|\x1b\\\\|\x9c)"
    # Choice of a character set, keypad modes, saved cursors, and the reset.
    "|(?<=\x1b)[()*+][0-9A-Za-z]|(?<=\x1b)[=>78cDEHM])"
    # OSC, DCS, SOS, PM and APC: a message to the terminal. OSC 52 writes the clipboard.
    "|(?P<message>(?P<lead>(?<=\x1b)[\\]PX^_]|(?<=[\x9d\x90\x98\x9e\x9f]))(?P<number>[0-9]{0,4})"
    "[^\x00-\x08\x0a-\x1f\x7f-\x9f]{0,65536}(?:\x07|\x1b\\\\|\x9c))"
    "|(?P<bad>))"
)
_CONTROLS = bytes(
    0x21 if byte in b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x7f" or 0x0B <= byte < 0x20 else 0x20 for byte in range(256)
)


def sanitize(text: str) -> str:
    """Sanitize text with several lines: line feeds and tabs stay, CR LF becomes LF, a lone CR becomes visible."""
    return _PARTS.sub(_show, text) if _is_suspect(text) else text


def reveal(text: str) -> str:
    """Sanitize text that will be executed or written: terminal sequences become visible instead of being removed."""
    # A shell executes the characters of a sequence: `\x1b]0; rm x #\x07` runs `rm`.
    return _PARTS.sub(_show_all, text) if _is_suspect(text) else text


def sanitize_line(text: str) -> str:
    """Sanitize text for one line: line feeds and tabs become visible too, so that it can't fake another line."""
    return sanitize(text).replace("\n", "\\n").replace("\t", "\\t")


def escape_json(text: str) -> str:
    """Replace control, bidi and invisible characters of JSON text with JSON escapes, which mean the same."""
    return text if text.isascii() and "\x7f" not in text else SUSPECT.sub(_escape_in_json, text)


def _escape_in_json(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    # JSON escapes are UTF-16, so these characters need a surrogate pair.
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _is_suspect(text: str) -> bool:
    # Most text is ASCII without control characters: a translation table checks that several times faster than a regex.
    if text.isascii():
        return b"!" in text.encode().translate(_CONTROLS)
    return SUSPECT.search(text) is not None


def _show(match: re.Match[str]) -> str:
    match match.lastgroup:
        case "keep":
            return match[0]
        case "newline":
            return "\n"
        case "drop":
            return ""
        case "message":
            return f"{''.join(map(_escape, match[0][0] + match['lead']))}{match['number']}…"
        case _:
            return _escape(match[0])


def _show_all(match: re.Match[str]) -> str:
    match match.lastgroup:
        case "keep":
            return match[0]
        case "newline":
            return "\n"
        case _:
            return "".join(map(_escape, match[0]))


def _escape(character: str) -> str:
    code = ord(character)
    if character == "\r":
        return "\\r"
    if character in "\n\t" or 0x20 <= code < 0x7F or SUSPECT.fullmatch(character) is None:
        return character
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
