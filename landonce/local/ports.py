"""Picks free loopback ports for local servers.

It never hands out a port of the kernel's ephemeral range: an outgoing connection could take such a port between
the moment it is picked and the moment the server binds it, or while the server is down between two starts.
"""

import random
import socket
from itertools import islice

LOOPBACK = "127.0.0.1"
FIRST, END = 15_000, 32_000


def is_free(port: int) -> bool:
    """Whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_open(port: int, timeout: float = 0.5) -> bool:
    """Whether something accepts connections on the port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different free ports, in random order so that parallel test runs rarely meet."""
    candidates = random.SystemRandom().sample(range(FIRST, END), END - FIRST)
    picked = list(islice(filter(is_free, candidates), count))
    if len(picked) < count:
        raise OSError(f"fewer than {count} free ports between {FIRST} and {END} on {LOOPBACK}")
    return picked
