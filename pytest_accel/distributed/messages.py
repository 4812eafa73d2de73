"""JSON lines over TCP between a session and its ranks.

Plain JSON and no pickle: what arrives is data and never code. A caller must know the token; others are dropped.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

Message = dict[str, Any]

MAX_BYTES = 64 * 2**20  # of one message: a traceback or the rounds of a long run are far below
_MAX_HELLO_BYTES = 64 * 2**10  # of what a caller may send before it has shown the token
_HELLO_S = 10.0  # for a caller to show it
_MAX_CALLERS = 256  # that have not shown it yet
_SEND_S = 30  # for the other end's kernel to take a message
_CHUNK = 2**20


class ConnectionLost(ConnectionError):  # noqa: N818 - reads as what happened
    """The other end is gone or sent garbage; the message says which."""


class TooLargeError(ValueError):
    """A message larger than the other end accepts."""


class Readable(Protocol):
    """Something to wait for."""

    @property
    def pending(self) -> bool: ...
    def fileno(self) -> int: ...


R = TypeVar("R", bound=Readable)


def ready(sources: Iterable[R], timeout_s: float) -> list[R]:
    """Return those that have something to read, or have ended; none after the timeout."""
    found = list(sources)
    if pending := [source for source in found if source.pending]:
        return pending
    with selectors.DefaultSelector() as selector:
        for source in found:
            selector.register(source, selectors.EVENT_READ, source)
        return [key.data for key, _ in selector.select(max(timeout_s, 0.0))]


class Connection:
    """One end of a connection. Sending is safe from several threads, receiving from one."""

    def __init__(self, sock: socket.socket, *, limit: int = MAX_BYTES) -> None:
        self.limit = limit
        self.end = ""  # why it ended; empty while it is open
        self._socket = sock
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer that are known to hold no line end
        self._lock = threading.Lock()
        sock.settimeout(None)
        _enable_keepalive(sock)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether a complete message is in the buffer."""
        return not self.end and self._line_end() >= 0

    def send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MAX_BYTES:
            raise TooLargeError(f"a message of {len(line)} bytes; at most {MAX_BYTES} are taken")
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError as error:  # also a full buffer: the other end does not read
            raise ConnectionLost(self._ended(f"cannot be reached: {error.strerror or error}")) from None

    def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message; TimeoutError when none came, ConnectionLost when none will."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if (message := self._take()) is not None:
                return message
            if self.end:
                raise ConnectionLost(self.end)
            left_s = 3600.0 if deadline is None else deadline - time.monotonic()
            if ready([self], left_s):
                self._read()
            elif deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"no message within {timeout_s:g} s")

    def arrived(self) -> list[Message]:
        """Return all messages that are here, without waiting; afterwards `end` says whether more can come."""
        while not self.end and not self.pending and ready([self], 0):
            self._read()
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        self.end = self.end or "closed here"
        self._socket.close()

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError as error:
            self._ended(f"went away: {error.strerror or error}")
            return
        if not chunk:
            self._ended("closed the connection")
        self._buffer += chunk
        if len(self._buffer) > self.limit and self._line_end() < 0:
            self._ended(f"sent a message of more than {self.limit} bytes")

    def _line_end(self) -> int:
        found = self._buffer.find(b"\n", self._searched)
        if found < 0:
            self._searched = len(self._buffer)
        return found

    def _take(self) -> Message | None:
        """Return the next complete line; what was sent before the connection ended still counts."""
        end = self._line_end()
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):  # no JSON, or brackets without end
            message = None
        if not isinstance(message, dict):
            self._buffer.clear()
            self._ended("sent something that is no message")
            return None
        return message

    def _ended(self, reason: str) -> str:
        self.end = self.end or reason
        return self.end


class Listener:
    """Accepts ranks; a caller is accepted when its first message carries the token."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        """Listen on an IPv4 address of this machine; the empty one is all of them, IPv6 too."""
        self.token = secrets.token_hex(16)
        dual = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family, dualstack_ipv6=dual)
        self._socket.settimeout(0)
        self._callers: dict[Connection, float] = {}  # and when they must have shown the token

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def pending(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._socket.fileno()

    def sources(self) -> Sequence[Readable]:
        """Return what to wait for before `arrived` is called again."""
        return [self, *self._callers]

    def arrived(self) -> list[tuple[Connection, Message]]:
        """Return new callers with their hello (without the token); never waits."""
        self._accept()
        accepted = []
        for caller, deadline in list(self._callers.items()):
            hello = None
            with suppress(TimeoutError, ConnectionLost):
                hello = caller.receive(0)  # the hello alone: what follows it stays in the buffer
            if hello is not None and self._knows(hello):
                del self._callers[caller]
                caller.limit = MAX_BYTES
                accepted.append((caller, hello))
            elif hello is not None or caller.end or time.monotonic() > deadline:
                del self._callers[caller]
                caller.close()
        return accepted

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        self._callers.clear()
        self._socket.close()

    def _accept(self) -> None:
        while len(self._callers) < _MAX_CALLERS:
            try:
                sock, _ = self._socket.accept()
            except OSError:  # no caller, or gone again
                return
            with suppress(OSError):  # gone already
                self._callers[Connection(sock, limit=_MAX_HELLO_BYTES)] = time.monotonic() + _HELLO_S

    def _knows(self, hello: Message) -> bool:
        token = hello.pop("token", None)
        if not isinstance(token, str):
            return False
        return hmac.compare_digest(token.encode(errors="surrogatepass"), self.token.encode())


def call(host: str, port: int, *, token: str, hello: Mapping[str, Any], timeout_s: float) -> Connection:
    """Connect to a listener and say hello; ConnectionLost when none answers."""
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
        connection = Connection(sock)
    except OSError as error:
        raise ConnectionLost(f"no answer at {host}:{port}: {error.strerror or error}") from None
    connection.send({**hello, "token": token})
    return connection


def _enable_keepalive(sock: socket.socket) -> None:
    """Notice a peer that lost its power, which closes nothing; send small messages at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if option := getattr(socket, name, None):  # Linux
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
