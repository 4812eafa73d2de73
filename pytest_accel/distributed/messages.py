"""JSON lines over TCP between a session and its ranks.

Plain JSON and no pickle: what arrives is data and never code. Both ends prove that they know the token, which is never sent:

    caller                                  listener
                                <-- a challenge
    hello, a challenge, proof -->
                                <-- proof
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

Message = dict[str, Any]

_MAX_HELLO_BYTES = 64 * 2**10  # of what a caller may send before it has shown the token
_SEND_S = 30  # for the other end's kernel to take a message
_CHUNK = 2**20


class ConnectionLost(ConnectionError):  # noqa: N818 - reads as what happened
    """The other end is gone or sent garbage; the message says which."""


def ready(sources: Iterable[Connection | socket.socket], timeout_s: float) -> bool:
    """Wait until one of them has something to read, or has ended; return whether one has."""
    return bool(wait([source.fileno() for source in sources], timeout_s))


class Connection:
    """One end of a connection. Sending is safe from several threads, receiving from one."""

    def __init__(self, sock: socket.socket, *, limit: int | None = None) -> None:
        self.limit = limit  # bytes of a message; None: any number
        self.end = ""  # why it ended; empty while it is open
        self._socket = sock
        self._buffer = bytearray()
        self._messages: deque[Message] = deque()
        self._lock = threading.Lock()
        sock.settimeout(None)
        _enable_keepalive(sock)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError as error:  # also a full buffer: the other end does not read
            self._finish(f"cannot be reached: {error.strerror or error}")
            raise ConnectionLost(self.end) from None

    def receive(self) -> Message:
        """Return the next message; ConnectionLost when none will come."""
        while not self._messages:
            if self.end:
                raise ConnectionLost(self.end)
            self._read()
        return self._messages.popleft()

    def arrived(self, most: int | None = None) -> list[Message]:
        """Return the messages that are here, without waiting; afterwards `end` says whether more can come."""
        while not self.end and ready([self], 0):
            self._read()
        count = len(self._messages) if most is None else min(most, len(self._messages))
        return [self._messages.popleft() for _ in range(count)]

    def close(self) -> None:
        self._finish("closed here")
        self._socket.close()

    def _read(self) -> None:
        """Wait for bytes and take in all complete lines; what was sent before the connection ended still counts."""
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError as error:
            self._finish(f"went away: {error.strerror or error}")
            return
        if not chunk:
            self._finish("closed the connection")
        self._buffer += chunk
        if b"\n" in chunk:
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                self._take(line)
        elif self.limit is not None and len(self._buffer) > self.limit:
            self._finish(f"sent a message of more than {self.limit} bytes")

    def _take(self, line: bytearray) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):  # no JSON, or brackets without end
            message = None
        if not isinstance(message, dict):
            self._finish("sent something that is no message")
        elif not self.end:
            self._messages.append(message)

    def _finish(self, reason: str) -> None:
        self.end = self.end or reason


class Listener:
    """Accepts ranks; a caller is accepted when its first message proves that it knows the token."""

    def __init__(self, address: str, token: str = "") -> None:
        """Listen on an IPv4 address of this machine; the empty one is all of them, IPv6 too."""
        self.token = token or secrets.token_hex(16)
        dual = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family, dualstack_ipv6=dual)
        self._socket.settimeout(0)
        self._callers: dict[Connection, str] = {}  # that have not answered their challenge yet

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def sources(self) -> list[socket.socket | Connection]:
        """Return what to wait for before `arrived` is called again."""
        return [self._socket, *self._callers]

    def arrived(self) -> list[tuple[Connection, Message]]:
        """Return new callers with their hello; never waits."""
        with suppress(OSError):  # no caller, or gone again
            while True:
                sock, _ = self._socket.accept()
                caller, challenge = Connection(sock, limit=_MAX_HELLO_BYTES), secrets.token_hex(16)
                self._callers[caller] = challenge
                caller.send({"challenge": challenge})
        accepted = []
        for caller in list(self._callers):
            hellos = caller.arrived(1)  # what follows the hello is for later
            if not hellos and not caller.end:
                continue
            challenge, hello = self._callers.pop(caller), hellos[0] if hellos else {}
            theirs = hello.pop("challenge", None)
            if _proves(hello.pop("proof", None), self.token, "caller", challenge):
                caller.limit = None
                with suppress(ConnectionLost):  # the connection says so
                    caller.send({"proof": _proof(self.token, "listener", str(theirs))})
                accepted.append((caller, hello))
            else:
                caller.close()
        return accepted

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        self._callers.clear()
        self._socket.close()


def call(host: str, port: int, *, token: str, hello: Mapping[str, Any], timeout_s: float) -> Connection:
    """Connect to a listener and say hello; ConnectionLost when none answers, or one that does not know the token."""
    deadline = time.monotonic() + timeout_s
    try:
        connection = Connection(socket.create_connection((host, port), timeout=timeout_s))
    except OSError as error:
        raise ConnectionLost(f"no answer at {host}:{port}: {error.strerror or error}") from None
    theirs, ours = _answer(connection, "challenge", deadline), secrets.token_hex(16)
    connection.send({**hello, "challenge": ours, "proof": _proof(token, "caller", str(theirs))})
    if not _proves(_answer(connection, "proof", deadline), token, "listener", ours):
        connection.close()
        raise ConnectionLost(f"what listens at {host}:{port} does not know the token of this session")
    return connection


def _answer(connection: Connection, key: str, deadline: float) -> object:
    while not (found := connection.arrived(1)):
        if connection.end or not ready([connection], max(0.0, deadline - time.monotonic())):
            why = connection.end or "did not answer in time"
            connection.close()
            raise ConnectionLost(f"no session answers there: it {why}")
    return found[0].get(key)


def _proof(token: str, end: str, challenge: str) -> str:
    return hmac.digest(token.encode(), f"{end} {challenge}".encode(errors="surrogatepass"), "sha256").hex()


def _proves(proof: object, token: str, end: str, challenge: str) -> bool:
    expected = _proof(token, end, challenge)
    return isinstance(proof, str) and proof.isascii() and hmac.compare_digest(proof, expected)


def _enable_keepalive(sock: socket.socket) -> None:
    """Notice a peer that lost its power, which closes nothing; send small messages at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
