"""Free ports for servers that cannot choose their own."""

import socket
from contextlib import ExitStack
from random import SystemRandom

_FIRST, _LAST = 15_000, 32_000
"""Below the ports that the system gives to outgoing connections: none of them can take the port before the server."""


def find_free_ports(count: int) -> list[int]:
    random = SystemRandom()
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            port = random.randint(_FIRST, _LAST)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
