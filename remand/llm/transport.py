"""One HTTP connection with a deadline for the whole call, a bound on what it reads, and a note of what was sent.

HTTP libraries bound each read, so a server that sends a byte now and then holds a thread for ever. Here every
connect, handshake, write and read gets what is left of the call's time. Name resolution alone cannot be cut short.
Only imported when a client is built: it needs `httpx2`, which the OpenAI SDK stands on.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

MAX_RECEIVED: Final = 28 * 1024 * 1024
"""The most bytes read for one call: a reply of the largest size that is looked at, every character escaped."""
_KEEP_ALIVE: Final = 30.0
_PIECE: Final = 16 * 1024


class Line(httpcore2.NetworkBackend):
    """The network of one client, used by one call at a time. `begin` starts a call."""

    def __init__(self) -> None:
        self._inner = httpcore2.SyncBackend()
        self.deadline = 0.0
        self.sent = False
        """Whether any byte of the call's request may have reached the server."""
        self.overflow = False
        """Whether the server sent more than is read."""
        self._received = 0

    def begin(self, deadline: float) -> None:
        """A new call, that must end before `time.monotonic()` reads `deadline`."""
        self.deadline = deadline
        self.sent = self.overflow = False
        self._received = 0

    def left(self, timeout: float | None, kind: type[Exception]) -> float:
        """Seconds that the next step may take. Raises `kind` if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise kind()
        return left if timeout is None else min(left, timeout)

    def receive(self, size: int) -> None:
        """Count what was read. Raises `ReadError` above the bound."""
        self._received += size
        if self._received > MAX_RECEIVED:
            self.overflow = True
            raise httpcore2.ReadError()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        end = time.monotonic() + self.left(timeout, httpcore2.ConnectTimeout)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            found = []
        problem: Exception = httpcore2.ConnectError()
        # One address after the other out of one allowance, which the library would grant to each.
        for address in dict.fromkeys(str(entry[4][0]) for entry in found):
            left = end - time.monotonic()
            if left <= 0:
                problem = httpcore2.ConnectTimeout()
                break
            try:
                return _Stream(
                    self, self._inner.connect_tcp(address, port, left, local_address, socket_options)
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = error
        raise problem

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.NetworkStream:
        left = self.left(timeout, httpcore2.ConnectTimeout)
        return _Stream(self, self._inner.connect_unix_socket(path, left, socket_options))


class _Stream(httpcore2.NetworkStream):
    def __init__(self, line: Line, inner: httpcore2.NetworkStream) -> None:
        self._line = line
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, self._line.left(timeout, httpcore2.ReadTimeout))
        self._line.receive(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In pieces, because the library grants the whole time again to each partial send.
        for start in range(0, len(buffer), _PIECE):
            left = self._line.left(timeout, httpcore2.WriteTimeout)
            self._line.sent = True
            self._inner.write(buffer[start : start + _PIECE], left)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        left = self._line.left(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._line, self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


@cache
def tls() -> ssl.SSLContext:
    """One context a process: loading the certificates costs more than a hundred requests."""
    return httpx2.create_ssl_context()


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    known = getproxies()
    proxy = known.get(parts.scheme) or known.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def http_client(url: str, line: Line) -> httpx2.Client:
    """An HTTP client for `url` whose every byte goes over `line`. Redirects are not followed: a prompt goes where it
    was sent to. The proxy settings of the environment count."""
    limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEP_ALIVE)
    transport = httpx2.HTTPTransport(verify=tls(), limits=limits, proxy=_proxy(url))
    # The transport takes no backend of its own; the pool underneath reads this attribute at each connect.
    transport._pool._network_backend = line
    return httpx2.Client(
        transport=transport, follow_redirects=False, trust_env=False, headers={"accept-encoding": "identity"}
    )
