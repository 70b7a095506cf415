"""A TLS server that answers every request with bytes given beforehand, right or wrong."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bench.harness.pki import Pki

Answer = Callable[[int], bytes | None]
"""Number of the request → the bytes to send; None: close without an answer."""


class CrookedServer:
    """`with CrookedServer(pki, answer) as server:`; one thread a connection, all ended with the block."""

    def __init__(self, pki: Pki, answer: Answer, piece: int = 1 << 20, delay: float = 0.0) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.front_proxy_ca))
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_cert_chain(pki.serving.both)
        self._answer, self._piece, self._delay = answer, piece, delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []
        self.requests: list[bytes] = []
        """The head of each request, as it came."""
        self.resumed = 0

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            threads, connections = list(self._threads), list(self._connections)
        for connection in connections:
            connection.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            raw.settimeout(5)
            self._start(self._serve, raw)

    def _serve(self, raw: socket.socket) -> None:
        try:
            with self._context.wrap_socket(raw, server_side=True) as connection:
                with self._lock:
                    self._connections.append(connection)
                    self.resumed += bool(connection.session_reused)
                while self._exchange(connection):
                    pass
        except (OSError, ValueError):
            return

    def _exchange(self, connection: ssl.SSLSocket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(65536)
            if not received:
                return False
            head += received
        with self._lock:
            number = len(self.requests)
            self.requests.append(head)
        answer = self._answer(number)
        if answer is None:
            return False
        for start in range(0, len(answer), self._piece):
            connection.sendall(answer[start : start + self._piece])
            time.sleep(self._delay)
        return True
