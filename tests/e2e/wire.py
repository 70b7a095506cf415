"""A small HTTP/1.1 client that sends bytes as given and shows an answer's header lines as they came."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.pki import Credential, trusting

Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Route:
    """One way to kube-apiserver: the address to dial and the authority that vouches for it."""

    name: str
    port: int
    ca_file: Path
    server_name: str = "kubernetes"

    def connect(
        self, credential: Credential | None = None, *, source: str = "127.0.0.1", timeout: float = 20.0
    ) -> Connection:
        return Connection(self, credential, source=source, timeout=timeout)

    def get(self, target: str, *, token: str = "", credential: Credential | None = None) -> Answer:
        """One GET on a connection of its own."""
        return self.request("GET", target, token=token, credential=credential)

    def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: Any = None,
        *,
        token: str = "",
        credential: Credential | None = None,
    ) -> Answer:
        """One request on a connection of its own."""
        with self.connect(credential) as connection:
            return connection.request(method, target, headers, body, token=token)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Answer:
    """A response: `lines` holds its header lines in order, `trailers` those after a chunked body."""

    status: int
    reason: str
    lines: Lines
    body: bytes
    trailers: Lines = field(default_factory=list)

    def json(self) -> Any:
        return json.loads(self.body)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.lines if key.lower() == name.lower()]


class Connection:
    """One TLS connection, used for one exchange after the other."""

    def __init__(
        self,
        route: Route,
        credential: Credential | None = None,
        *,
        source: str = "127.0.0.1",
        timeout: float = 20.0,
    ) -> None:
        context = trusting(route.ca_file)
        if credential is not None:
            context.load_cert_chain(credential.cert_file, credential.key_file)
        plain = socket.create_connection(("127.0.0.1", route.port), timeout, (source, 0))
        try:
            self.socket = context.wrap_socket(plain, server_hostname=route.server_name)
        except BaseException:
            plain.close()
            raise
        self.reader = self.socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.reader.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: Any = None,
        *,
        token: str = "",
    ) -> Answer:
        """Send one request and read its answer. A `body` that is not bytes is sent as JSON."""
        self.send(head(method, target, headers, body, token=token))
        return self.answer(method)

    def answer(self, method: str = "GET") -> Answer:
        """Read one answer, after any 1xx but 101. A connection that ends early raises EOFError."""
        while True:
            status, reason, lines = self.answer_head()
            if status >= 200 or status == 101:
                break
        trailers: Lines = []
        body = b"".join(self.pieces(method, status, lines, trailers))
        return Answer(status, reason, lines, body, trailers)

    def answer_head(self) -> tuple[int, str, Lines]:
        start = self._line()
        version, _, rest = start.partition(" ")
        code, _, reason = rest.partition(" ")
        assert version == "HTTP/1.1", f"not an HTTP/1.1 answer: {start!r}"
        return int(code), reason, self._fields()

    def pieces(self, method: str, status: int, lines: Lines, trailers: Lines) -> Iterator[bytes]:
        """The body's pieces, chunk by chunk where it is chunked; `trailers` is filled after the last."""
        by_name = {name.lower(): value for name, value in lines}
        if method == "HEAD" or status in (101, 204, 304):
            return
        if by_name.get("transfer-encoding") == "chunked":
            while size := int(self._line().partition(";")[0], 16):
                yield self._exactly(size)
                assert self._line() == "", "a chunk that does not end where it says"
            trailers.extend(self._fields())
        elif "content-length" in by_name:
            yield self._exactly(int(by_name["content-length"]))
        else:
            yield self.reader.read()

    def events(self, lines: Lines) -> Iterator[Any]:
        """A watch's events as they come; a chunk may hold several, or a part of one."""
        rest = b""
        for piece in self.pieces("GET", 200, lines, []):
            *whole, rest = (rest + piece).split(b"\n")
            yield from map(json.loads, whole)

    def at_end(self) -> bool:
        """Whether the peer has closed and nothing is left to read."""
        return self.reader.read(1) == b""

    def _fields(self) -> Lines:
        fields: Lines = []
        while line := self._line():
            name, _, value = line.partition(":")
            fields.append((name, value.strip(" \t")))
        return fields

    def _line(self) -> str:
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError(f"the connection ended inside a line: {line!r}")
        return line[:-2].decode("latin-1")

    def _exactly(self, size: int) -> bytes:
        data = self.reader.read(size)
        if len(data) != size:
            raise EOFError(f"the connection ended after {len(data)} of {size} bytes")
        return data


def head(
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    body: Any = None,
    *,
    token: str = "",
) -> bytes:
    """A request's bytes: header values as latin-1, so that any byte can be said; a body's length added."""
    lines: Sequence[tuple[str, str]] = [("Host", "kubernetes"), *headers]
    if token:
        lines = [*lines, ("Authorization", f"Bearer {token}")]
    content = b""
    if body is not None:
        if isinstance(body, bytes):
            content = body
        else:
            content = json.dumps(body).encode()
            if not any(name.lower() == "content-type" for name, _ in lines):
                lines = [*lines, ("Content-Type", "application/json")]
        lines = [*lines, ("Content-Length", str(len(content)))]
    text = (
        f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
    )
    return text.encode("latin-1") + content


def chunked(
    method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes, trailers: Lines
) -> bytes:
    """A request in one chunk, with trailers."""
    start = head(method, target, [*headers, ("Transfer-Encoding", "chunked")])
    end = "".join(f"{name}: {value}\r\n" for name, value in trailers)
    return start + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n" + end.encode("latin-1") + b"\r\n"
