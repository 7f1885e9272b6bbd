"""Which addresses of the internet are open to everybody, and which lead to this machine or its network. Pure.

The table is our own: what `ipaddress` calls private has changed from one Python to the next.
"""

from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network

_FORBIDDEN_4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "a carrier's network",
    "127.0.0.0/8": "this machine",
    "168.63.129.16/32": "a cloud's metadata service",
    "169.254.0.0/16": "the local link, where metadata services are",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "a reserved network",
    "192.0.2.0/24": "a network for examples",
    "192.88.99.0/24": "a reserved network",
    "192.168.0.0/16": "a private network",
    "198.18.0.0/15": "a network for tests",
    "198.51.100.0/24": "a network for examples",
    "203.0.113.0/24": "a network for examples",
    "224.0.0.0/4": "many machines at once",
    "240.0.0.0/4": "a reserved network",
}
_GLOBAL_6 = "2000::/3"
"""All that is given out to the public; the rest is forbidden without being named, but for the two translations."""
_FORBIDDEN_6 = {
    "2001::/23": "a reserved network or a tunnel",
    "2001:db8::/32": "a network for examples",
    "2002::/16": "a tunnel to an IPv4 address",
    "3fff::/20": "a network for examples",
}
_TRANSLATED_6 = ("::ffff:0:0/96", "64:ff9b::/96")
"""An IPv4 address in the last four bytes, reached as such."""

_MAX_PARTS = 4
_MAX_ADDRESS = 2**32


def find_reason(address: IPv4Address | IPv6Address) -> str:
    """What a forbidden address leads to; empty for one that everybody may reach."""
    if isinstance(address, IPv6Address):
        if any(address in IPv6Network(network) for network in _TRANSLATED_6):
            return find_reason(IPv4Address(address.packed[-4:]))
        if address not in IPv6Network(_GLOBAL_6):
            return "this machine or a private network"
        return _look_up_6(address)
    return next((reason for network, reason in _FORBIDDEN_4.items() if address in IPv4Network(network)), "")


def _look_up_6(address: IPv6Address) -> str:
    return next((reason for network, reason in _FORBIDDEN_6.items() if address in IPv6Network(network)), "")


def parse_address(text: str) -> IPv4Address | IPv6Address:
    """An address as a resolver gives it. Raises `ValueError`."""
    return IPv6Address(text.split("%", 1)[0]) if ":" in text else IPv4Address(text)


def find_address(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host of a URL spells, in any form that a resolver takes; None for a name.

    Raises `ValueError` for what ends like a number and is none.
    """
    if host.startswith("["):
        return _parse_bracketed(host)
    parts = host.removesuffix(".").split(".")
    if not _is_number(parts[-1]):
        return None
    if len(parts) > _MAX_PARTS:
        raise ValueError(host)
    numbers = [_parse_number(part) for part in parts]
    *first, last = numbers
    if any(number > 255 for number in first) or last >= 256 ** (_MAX_PARTS + 1 - len(numbers)):
        raise ValueError(host)
    value = sum(number << 8 * (_MAX_PARTS - 1 - place) for place, number in enumerate(first)) + last
    return IPv4Address(value % _MAX_ADDRESS)


def _parse_bracketed(host: str) -> IPv6Address:
    try:
        return IPv6Address(host[1:-1] if host.endswith("]") and "%" not in host else "")
    except AddressValueError as error:
        raise ValueError(host) from error


def _is_number(part: str) -> bool:
    return part[:1].isdigit() and (part.isdigit() or part[:2].lower() == "0x")


def _parse_number(part: str) -> int:
    if not part.isascii() or not part:
        raise ValueError(part)
    if part[:2].lower() == "0x":
        return int(part[2:] or "0", 16)
    return int(part, 8) if part.startswith("0") and len(part) > 1 else int(part, 10)
