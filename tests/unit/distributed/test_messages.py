"""Messages over TCP: framing, order, limits, tokens."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_accel.distributed.messages import Connection, ConnectionLost, Listener, call, ready

LONG_S = 60.0


@pytest.fixture(params=["127.0.0.1", ""])
def listener(request):
    found = Listener(request.param)
    yield found
    found.close()


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    ends = Connection(left), Connection(right)
    yield ends
    for end in ends:
        end.close()


def meet(listener, hello, token=""):
    """Return both ends of a call: the caller, the accepted connection and the hello that it got."""
    with ThreadPoolExecutor(1) as pool:
        options = {"token": token or listener.token, "hello": hello, "timeout_s": LONG_S}
        calling = pool.submit(call, "127.0.0.1", listener.port, **options)
        found = []
        while not found and not calling.done():
            ready(listener.sources(), 0.1)
            found = listener.arrived()
        caller = calling.result()
        ((connection, heard),) = found
        return caller, connection, heard


class TestConnection:
    @pytest.mark.parametrize(
        "message", [{}, {"text": "ä\n\u2028\0"}, {"deep": [{"a": [1, 2.5, None, True]}]}]
    )
    def test_message_crosses_unchanged(self, pair, message):
        pair[0].send(message)
        assert pair[1].receive() == message

    def test_large_message_crosses_in_pieces(self, pair):
        message = {"text": "x" * 5_000_000}
        sender = threading.Thread(target=pair[0].send, args=[message])
        sender.start()
        assert pair[1].receive() == message
        sender.join()

    def test_partial_message_is_kept_until_complete(self, pair):
        pair[0]._socket.sendall(b'{"a": ')
        assert ready([pair[1]], LONG_S)
        assert pair[1].arrived() == []
        pair[0]._socket.sendall(b"1}\n")
        assert pair[1].receive() == {"a": 1}

    def test_messages_sent_before_the_end_are_received(self, pair):
        pair[0].send({"a": 1})
        pair[0].send({"a": 2})
        pair[0].close()
        assert pair[1].receive() == {"a": 1}
        assert pair[1].receive() == {"a": 2}
        with pytest.raises(ConnectionLost, match="closed the connection"):
            pair[1].receive()

    @pytest.mark.parametrize("line", [b"nonsense", b"[1, 2]", b"\xff\xfe", b"", b"1"])
    def test_invalid_message_ends_the_connection(self, pair, line):
        pair[0]._socket.sendall(line + b"\n")
        with pytest.raises(ConnectionLost, match="no message"):
            pair[1].receive()

    def test_sending_to_a_closed_peer_raises(self, pair):
        def send_on() -> None:
            while True:
                pair[0].send({"text": "x" * 1000})

        pair[1].close()
        with pytest.raises(ConnectionLost):
            send_on()
        assert pair[0].end


class TestListener:
    def test_caller_with_the_token_is_accepted(self, listener):
        caller, connection, hello = meet(listener, {"rank": 3})
        assert hello == {"rank": 3}
        connection.send({"order": 1})
        assert caller.receive() == {"order": 1}
        for end in (caller, connection):  # a peer that lost its power closes nothing
            with socket.socket(fileno=os.dup(end.fileno())) as found:
                assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    def test_caller_with_another_token_is_dropped(self, listener):
        with pytest.raises(ConnectionLost, match="no session answers there: it closed the connection"):
            meet(listener, {"rank": 3}, token="guessed")

    def test_listener_without_the_token_is_refused_and_gets_nothing_that_proves_it(self):
        """Another user may have written the address that a rank calls."""
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
            port = server.getsockname()[1]
            calling = pool.submit(call, "127.0.0.1", port, token="secret", hello={}, timeout_s=LONG_S)
            stranger = Connection(server.accept()[0])
            stranger.send({"challenge": "c"})
            hello = stranger.receive()
            assert "secret" not in hello.values()
            stranger.send({"proof": hello["proof"]})  # what it got, sent back
            with pytest.raises(ConnectionLost, match="does not know the token"):
                calling.result()
            stranger.close()

    @pytest.mark.parametrize(
        "sent",
        [
            b'{"rank": 0}\n',
            b'{"proof": "guessed", "challenge": "x", "rank": 0}\n',
            b'{"proof": 5}\n',
            b'{"proof": null, "challenge": null}\n',
            b'{"proof": "\\ud800"}\n',
            b"[" * 60_000 + b"\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"x" * 100_000,
        ],
    )
    def test_caller_without_the_token_is_dropped_and_others_are_accepted(self, listener, sent):
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.settimeout(LONG_S)
            stranger.sendall(sent)
            _, _, hello = meet(listener, {"rank": 1})
            assert hello == {"rank": 1}
            while listener._callers:
                assert listener.arrived() == []
            with pytest.raises((ConnectionError, EOFError)):
                _read_end(stranger)

    def test_closed_port_is_reported_with_its_address(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
            call("127.0.0.1", port, token="", hello={}, timeout_s=LONG_S)


def _read_end(sock):
    while sock.recv(1000):
        pass
    raise EOFError
