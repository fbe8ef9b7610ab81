"""Attempts: wrong tokens by address. After a few, each further one costs twice the waiting time of the one before."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

FREE = 5  # wrong tokens without a wait: a link that was copied badly, and a few reloads
LONGEST = 60.0  # seconds
FORGOTTEN = 3600.0  # seconds after the last wrong token
REMEMBERED = 4096  # addresses


class Attempts:
    """Counts wrong tokens; bounded in memory, whatever addresses there are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by network: how many, and when the last was

    def wait(self, address: str) -> float:
        """Seconds until this address may try a token again."""
        count, last = self._failed.get(_network(address), (0, 0.0))
        since = self._clock() - last
        if count <= FREE or since > FORGOTTEN:
            return 0.0
        return max(0.0, min(LONGEST, 2.0 ** min(count - FREE - 1, 10)) - since)

    def fail(self, address: str) -> None:
        """Note a wrong token."""
        network, now = _network(address), self._clock()
        count, last = self._failed.pop(network, (0, now))
        self._failed[network] = (1 if now - last > FORGOTTEN else count + 1, now)
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    def succeed(self, address: str) -> None:
        """Forget the wrong tokens of an address that had the right one."""
        self._failed.pop(_network(address), None)


def _network(address: str) -> str:
    """The address, or of IPv6 the network of 64 bits, in which one machine may have any number of addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(found) if found.version == 4 else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
