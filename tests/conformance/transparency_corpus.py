"""Generated messages, and what the specification makes of them. Written from the documents, apart from the proxy's code.

Every message comes from a seeded generator, so that a corpus is the same on every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
VALUE = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
TARGET = bytes([*range(0x21, 0x7F), *range(0x80, 0x100)])
METHODS = (
    *(
        b"GET",
        b"HEAD",
        b"POST",
        b"PUT",
        b"PATCH",
        b"DELETE",
        b"OPTIONS",
        b"TRACE",
        b"PROPFIND",
        b"BREW",
        b"get",
        b"a!~",
    ),
    *(b"M-SEARCH", b"PURGE", b"LONG" * 20),
)
TARGETS = (
    *(
        b"/",
        b"//",
        b"/a/../b",
        b"/./a",
        b"/a/%2e%2e/b",
        b"/a%3Ab%3bc",
        b"/a%2Fb",
        b"/?q=%",
        b"/??y",
        b"/?",
        b"/%",
        b"/%zz",
    ),
    *(
        b"/api/v1/pods?labelSelector=a%3Db%2Cc%21%3Dd",
        b"/api/v1/namespaces/a/pods?watch=1&x=+y",
        b"/#f",
        b"/a?b#c",
    ),
    *(
        b"http://kubernetes/a//b",
        b"HTTPS://x:1/",
        b"/" + b"long/" * 1500,
        b"/?" + b"q" * 8000,
        b"/\xc3\xa9\xff\x80",
    ),
    *(
        b'/"<>\\^`{|}',
        b"/api/v1/namespaces/a/services/b:c/proxy/d/e",
        b"/;a=b;c",
        b"/a&b=c",
        b"/~u/*",
        b"/(a)[b]",
    ),
)
REQUEST_NAMES = (
    *(
        b"Accept",
        b"Accept-Encoding",
        b"User-Agent",
        b"Content-Type",
        b"Authorization",
        b"Cookie",
        b"Cookie2",
        b"Via",
    ),
    *(
        b"Impersonate-User",
        b"Impersonate-Group",
        b"Impersonate-Extra-Scopes",
        b"X_Remote_User",
        b"X-Remote",
        b"Audit-ID",
    ),
    *(
        b"X-Stream-Protocol-Version",
        b"Sec-WebSocket-Protocol",
        b"Forwarded",
        b"X-Real-Ip",
        b"X-Forwarded-Proto",
        b"Range",
    ),
    *(
        b"If-Match",
        b"Content-Encoding",
        b"Trailer",
        b"Proxy-Authorization",
        b"Origin",
        b"Referer",
        b"X-Thing",
        b"x-thing",
    ),
    *(b"Max-Forwards", b"Prefer", b"X-Remote-Userx", b"Content_Length", b"Endpoint-Load-Metrics", b"Expect"),
)
RESPONSE_NAMES = (
    *(
        b"Warning",
        b"Set-Cookie",
        b"Date",
        b"Audit-Id",
        b"Cache-Control",
        b"Content-Type",
        b"Content-Encoding",
        b"Location",
    ),
    *(
        b"X-Kubernetes-PF-PriorityLevel-UID",
        b"X-Kubernetes-Pf-Flowschema-Uid",
        b"Retry-After",
        b"WWW-Authenticate",
        b"Vary",
    ),
    *(
        b"Trailer",
        b"X-Thing",
        b"x-thing",
        b"Server",
        b"Age",
        b"ETag",
        b"Refresh",
        b"Strict-Transport-Security",
        b"Via",
    ),
)
# What is hop by hop (of TE all but "trailers"), and the opt-in for load reports; each is removed.
REQUEST_REMOVED = (
    *(
        b"Connection: keep-alive",
        b"connection:",
        b"Connection: X-Thing, Authorization, Content-Length",
        b"Keep-Alive: 5",
    ),
    *(
        b"Proxy-Connection: keep-alive",
        b"TE: gzip",
        b"te:",
        b"HTTP2-Settings: AAMAAABkAAQAAP__",
        b"Upgrade: websocket",
    ),
    *(b"Upgrade: h2c", b"Endpoint-Load-Metrics-Request: TEXT", b"endpoint-load-metrics-request: BIN"),
    *(
        b"X-Remote-User: forged",
        b"X-REMOTE-GROUP: system:masters",
        b"x-remote-uid: 0",
        b"X-Remote-Extra-Scopes: a",
    ),
    *(
        b"x-remote-user:\t J\xc3\xb6rg ",
        b"X-Remote-Group: a, b",
        b"x-remote-extra-A%2fb: c",
        b"X-Remote-Group:",
    ),
)
RESPONSE_REMOVED = (
    *(
        b"Connection: keep-alive",
        b"Keep-Alive: timeout=90",
        b"Proxy-Connection: x",
        b"Upgrade: h2",
        b"TE: trailers",
    ),
    *(
        b"Endpoint-Load-Metrics: TEXT cpu_utilization=0.5",
        b"endpoint-load-metrics-bin: CgYKBA",
        b"HTTP2-Settings: A",
    ),
    *(b"ENDPOINT-LOAD-METRICS-JSON: {}", b"Connection: X-Thing"),
)
STATUSES = (
    *(
        b"200 OK",
        b"201 Created",
        b"202 Accepted",
        b"206 Partial Content",
        b"301 Moved Permanently",
        b"302 Found",
    ),
    *(b"307 Temporary Redirect", b"400 Bad Request", b"401 Unauthorized", b"403 Forbidden", b"404 Not Found"),
    *(
        b"409 Conflict",
        b"410 Gone",
        b"413 Request Entity Too Large",
        b"422 Unprocessable Entity",
        b"429 Too Many Requests",
    ),
    *(
        b"500 Internal Server Error",
        b"503 Service Unavailable",
        b"504 Gateway Timeout",
        b"599 ",
        b"299 \xe9 \t x",
        b"205 R",
    ),
)
NO_TRAILER_REQUEST = (
    *(
        b"authorization",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"cookie",
        b"expect",
        b"trailer",
        b"range",
    ),
    *(b"host", b"content-length", b"transfer-encoding", b"connection", b"te", b"upgrade", b"keep-alive"),
    *(b"proxy-connection", b"x-forwarded-for", b"endpoint-load-metrics-request", b"http2-settings"),
)
NO_TRAILER_RESPONSE = (
    *(
        b"set-cookie",
        b"trailer",
        b"www-authenticate",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"te",
    ),
    *(
        b"upgrade",
        b"keep-alive",
        b"endpoint-load-metrics",
        b"endpoint-load-metrics-bin",
        b"endpoint-load-metrics-json",
    ),
    *(b"x-kubernetes-pf-prioritylevel-uid",),
)


def name_of(line: bytes) -> bytes:
    return line.partition(b":")[0].lower()


def value_of(line: bytes) -> bytes:
    return line.partition(b":")[2].strip(b" \t")


@dataclass
class Body:
    """A message's body: how it is framed, and the bytes before and after the proxy."""

    fields: list[bytes] = field(default_factory=list)
    sent: bytes = b""
    expected: bytes = b""


@dataclass
class Request:
    """A request as a client sends it."""

    method: bytes
    target: bytes
    lines: list[bytes]
    body: Body
    closes: bool = False

    @property
    def sent(self) -> bytes:
        start = self.method + b" " + self.target + b" HTTP/1.1"
        return b"\r\n".join([start, *self.lines, b"", b""]) + self.body.sent

    def expected(self, peer: bytes, identity: list[bytes]) -> bytes:
        """What reaches the upstream. `identity`: the lines that the proxy sets for this caller."""
        lines: list[bytes] = []
        forwarded = [line for line in self.lines if name_of(line) == b"x-forwarded-for"]
        placed = trailers = False
        for line in self.lines:
            name = name_of(line)
            if name == b"x-forwarded-for":
                if not placed:
                    values = [value_of(each) for each in forwarded if value_of(each)]
                    if len(forwarded) == 1:  # as it came, and the peer behind it
                        lines.append(line + (b", " if values else b" ") + peer)
                    else:
                        lines.append(b"X-Forwarded-For: " + b", ".join([*values, peer]))
                    placed = True
            elif name == b"te":
                tokens = [token.partition(b";")[0].strip().lower() for token in value_of(line).split(b",")]
                if b"trailers" in tokens:
                    trailers = True
                    lines.append(b"TE: trailers")
            elif name in (
                *(b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"http2-settings"),
                *(b"endpoint-load-metrics-request", b"x-remote-user", b"x-remote-group", b"x-remote-uid"),
            ) or name.startswith(b"x-remote-extra-"):
                continue
            else:
                lines.append(line)
        assert not trailers or sum(name_of(line) == b"te" for line in self.lines) == 1
        if not placed:
            lines.append(b"X-Forwarded-For: " + peer)
        start = self.method + b" " + self.target + b" HTTP/1.1"
        return b"\r\n".join([start, *lines, *identity, b"", b""]) + self.body.expected


def spoken_for(lines: list[bytes]) -> list[bytes]:
    """The identity lines that go upstream for a front proxy's request: none where it names no user."""
    users = [value_of(line) for line in lines if name_of(line) == b"x-remote-user"]
    if not users or not users[0]:
        return []
    groups = [value_of(line) for line in lines if name_of(line) == b"x-remote-group"]
    uids = [value_of(line) for line in lines if name_of(line) == b"x-remote-uid"]
    prefix = b"X-Remote-Extra-"
    extras = [
        (line[len(prefix) :].partition(b":")[0], value_of(line))
        for line in lines
        if line.lower().startswith(prefix.lower())
    ]
    return [
        b"X-Remote-User: " + users[0],
        *(b"X-Remote-Group: " + group for group in groups if group),
        *(b"X-Remote-Uid: " + uid for uid in uids[:1] if uid),
        *(prefix + key + b": " + value for key, value in extras),
    ]


@dataclass
class Response:
    """A response as the upstream sends it."""

    version: bytes
    status: bytes
    lines: list[bytes]
    body: Body
    interim: list[bytes]
    until_close: bool = False

    @property
    def head(self) -> bytes:
        return b"\r\n".join([b"HTTP/" + self.version + b" " + self.status, *self.lines, b"", b""])

    @property
    def sent(self) -> bytes:
        return b"".join(self.interim) + self.head + self.body.sent

    @property
    def says_close(self) -> bool:
        return any(
            name_of(line) == b"connection" and value_of(line).lower() == b"close" for line in self.lines
        )

    def expected(self, *, closes: bool) -> bytes:
        removed = {name_of(line) for line in RESPONSE_REMOVED}
        lines = [line for line in self.lines if name_of(line) not in removed]
        if closes:
            lines.append(b"Connection: close")
        head = b"\r\n".join([b"HTTP/1.1 " + self.status, *lines, b"", b""])
        return b"".join(self.interim) + head + self.body.expected


class Generator:
    """Messages from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, alphabet: bytes, low: int, high: int) -> bytes:
        return bytes(self.random.choices(alphabet, k=self.random.randint(low, high)))

    def line(self, names: tuple[bytes, ...]) -> bytes:
        pick = self.random.random()
        name = self.random.choice(names) if pick < 0.7 else b"X-" + self.some(TOKEN, 1, 12)
        if pick < 0.1:
            name = name.swapcase()
        before = self.random.choice((b" ", b" ", b" ", b"", b"\t", b"   "))
        after = self.random.choice((b"", b"", b"", b" ", b"\t "))
        return name + b":" + before + self.some(VALUE, 0, 30) + after

    def chunked(self, trailer_names: tuple[bytes, ...], dropped: tuple[bytes, ...]) -> Body:
        body = Body([self.random.choice((b"Transfer-Encoding: chunked", b"transfer-encoding:\tCHUNKED "))])
        for _ in range(self.random.randint(0, 4)):
            data = self.random.randbytes(self.random.choice((1, 2, 15, 16, 300)))
            size = b"%x" % len(data) if self.random.random() < 0.5 else b"%X" % len(data)
            size = size.rjust(self.random.choice((1, 1, 1, 8)), b"0")
            extension = self.random.choice((b"", b"", b"", b";a=b", b';x="y z"', b";"))
            body.sent += size + extension + b"\r\n" + data + b"\r\n"
            body.expected += size + b"\r\n" + data + b"\r\n"
        body.sent += self.random.choice((b"0", b"000", b"0;last")) + b"\r\n"
        body.expected += b"0\r\n"
        if self.random.random() < 0.4:
            for _ in range(self.random.randint(1, 3)):
                line = self.random.choice(trailer_names) + b": " + self.some(VALUE, 0, 9)
                body.sent += line + b"\r\n"
                name = name_of(line)
                if name not in dropped and not name.startswith(
                    (b"x-remote-", b"impersonate-", b"if-", b"content-", b"x-real-ip")
                ):
                    body.expected += line + b"\r\n"
        body.sent += b"\r\n"
        body.expected += b"\r\n"
        return body

    def counted(self) -> Body:
        data = self.random.randbytes(
            self.random.choice((0, 1, 5, 100, 5000, 70_000 if self.random.random() < 0.1 else 9))
        )
        digits = b"%d" % len(data)
        value = self.random.choice((digits, digits, b"00" + digits))
        return Body([self.random.choice((b"Content-Length: ", b"content-length:")) + value], data, data)

    def request(self, number: int) -> Request:
        pick = self.random
        method = pick.choice(METHODS[:6]) if pick.random() < 0.8 else pick.choice(METHODS)
        if pick.random() < 0.5:
            target = pick.choice(TARGETS)
        else:
            odd = bytes([TARGET[number % len(TARGET)]])
            target = (
                b"/"
                + self.some(TARGET, 0, 20)
                + odd
                + pick.choice((b"", b"?"))
                + odd
                + self.some(TARGET, 0, 20)
            )
        body = Body()
        framing = pick.random()
        if framing < 0.3:
            body = self.counted()
        elif framing < 0.55:
            names = (
                b"X-Checksum",
                b"x-checksum",
                b"Digest",
                b"Authorization",
                b"X-Remote-Group",
                b"Impersonate-User",
            )
            names += (
                b"Content-Length",
                b"Host",
                b"Transfer-Encoding",
                b"X-Forwarded-For",
                b"Expect",
                b"If-Match",
            )
            body = self.chunked(names, NO_TRAILER_REQUEST)
        lines = [self.line(REQUEST_NAMES) for _ in range(pick.randint(0, 8))]
        lines = [line for line in lines if name_of(line) != b"expect"]
        if pick.random() < 0.5:
            # Of identity and Upgrade there may be many; of "Connection" none that asks for what an Upgrade line offers.
            lines += [pick.choice(REQUEST_REMOVED) for _ in range(pick.randint(1, 4))]
        if pick.random() < 0.1:
            lines = [line for line in lines if name_of(line) != b"te"]
            lines.append(pick.choice((b"TE: trailers", b"te: deflate;q=0.5, Trailers")))
        if pick.random() < 0.3:
            lines += [
                pick.choice((b"X-Forwarded-For: 10.0.0.1", b"x-forwarded-for:", b"X-Forwarded-For:  1, 2 "))
                for _ in range(pick.choice((1, 1, 1, 2, 3)))
            ]
        if pick.random() < 0.02:
            lines += [b"X-Group: %d" % n for n in range(300)]
        closes = pick.random() < 0.03
        if closes:
            lines.append(pick.choice((b"Connection: close", b"connection: keep-alive, CLOSE")))
        lines += [pick.choice((b"Host: kubernetes", b"host:a:6443", b"HOST: [::1]")), *body.fields]
        pick.shuffle(lines)
        # The recording upstream finds by this which response to give.
        lines.insert(pick.randint(0, len(lines)), b"X-Number: %d" % number)
        return Request(method, target, lines, body, closes)

    def response(self, request: Request) -> Response:
        pick = self.random
        status = pick.choice(STATUSES)
        version = b"1.1"
        lines = [self.line(RESPONSE_NAMES) for _ in range(pick.randint(0, 8))]
        if pick.random() < 0.4:
            lines += [pick.choice(RESPONSE_REMOVED) for _ in range(pick.randint(1, 3))]
        framing = pick.random()
        until_close = False
        if framing < 0.1:
            status = pick.choice((b"204 No Content", b"304 Not Modified"))
            body = Body([b"Content-Length: 42"] if status.startswith(b"304") and pick.random() < 0.5 else [])
        elif framing < 0.5:
            body = self.counted()
        elif framing < 0.97:
            names = (
                b"Grpc-Status",
                b"X-Checksum",
                b"Endpoint-Load-Metrics",
                b"endpoint-load-metrics-bin",
                b"Set-Cookie",
            )
            names += (b"Content-Length", b"Content-Type", b"Transfer-Encoding", b"Connection", b"Digest")
            body = self.chunked(names, NO_TRAILER_RESPONSE)
        else:
            until_close = request.method != b"HEAD"
            version = pick.choice((b"1.1", b"1.0"))
            data = pick.randbytes(pick.choice((0, 10, 3000)))
            body = Body([], data, data)
        if request.method == b"HEAD":
            body.sent = body.expected = b""
        lines += body.fields
        if pick.random() < 0.03:
            lines.append(pick.choice((b"Connection: close", b"connection:Close")))
        pick.shuffle(lines)
        interim = [
            pick.choice(
                (
                    b"HTTP/1.1 100 Continue\r\n\r\n",
                    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nlink: </b>\r\n\r\n",
                )
            )
            for _ in range(pick.choice((0,) * 9 + (1, 2)))
        ]
        return Response(version, status, lines, body, interim, until_close)


def corpus(seed: int, numbers: range) -> Iterator[tuple[int, Request, Response]]:
    generator = Generator(seed)
    for number in numbers:
        request = generator.request(number)
        yield number, request, generator.response(request)
