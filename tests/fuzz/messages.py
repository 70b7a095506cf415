"""Strategies: messages that are right, nearly right and wrong, and the pieces they come in."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
VALUE = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
TARGET = bytes([*range(0x21, 0x7F), *range(0x80, 0x100)])
# What desyncs are made of.
TRICKY = b"\r\n\r\n\r\n\x00\t :;,=0123456789aAfFgGxX\x0b\x0c\x7f\x80\xff\"'()<>@[]{}\\/?"


def some_bytes(alphabet: bytes, min_size: int = 0, max_size: int = 12) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(alphabet), min_size=min_size, max_size=max_size).map(bytes)


tokens = some_bytes(TOKEN, 1)
values = some_bytes(VALUE)
field_lines = st.builds(
    lambda name, before, value, after: name + b":" + before + value + after,
    tokens,
    st.sampled_from([b"", b" ", b"\t", b"  "]),
    values,
    st.sampled_from([b"", b" ", b" \t"]),
)
KNOWN_LINES = (
    *(
        b"Content-Length: 0",
        b"Content-Length: 5",
        b"content-length:05",
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
    ),
    *(b"Transfer-Encoding: chunked", b"transfer-encoding:\tCHUNKED ", b"Transfer-Encoding: gzip, chunked"),
    *(b"Transfer-Encoding: identity", b"Transfer-Encoding : chunked", b"Transfer-Encoding:"),
    *(
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Connection:",
        b"Upgrade: websocket",
        b"Upgrade: h2c",
    ),
    *(
        b"Host: a",
        b"host:",
        b"TE: trailers",
        b"Expect: 100-continue",
        b"X-Forwarded-For: 1",
        b" folded",
        b"\tfolded",
    ),
    *(
        b"X-Remote-User: a",
        b"x-remote-extra-a: b",
        b"Trailer: X",
        b"A : b",
        b"A",
        b":",
        b"A: b\rC: d",
        b"A: b\nC: d",
    ),
)
request_lines = st.builds(
    lambda method, target, version: b" ".join((method, target, version)),
    st.sampled_from([b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"get", b"BREW"])
    | tokens,
    some_bytes(TARGET).map(lambda target: b"/" + target)
    | st.sampled_from([b"*", b"http://a/b", b"a", b"/a b"]),
    st.sampled_from(
        [b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/0.9", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 "]
    ),
)


@st.composite
def mutated(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    """A message with a few bytes put in, taken out or exchanged."""
    data = bytearray(draw(messages))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 3]))):
        at = draw(st.integers(0, len(data)))
        piece = draw(
            some_bytes(TRICKY, 0, 3) | st.sampled_from([b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"\x00"])
        )
        data[at : at + draw(st.integers(0, 2))] = piece
    return bytes(data)


request_heads = st.builds(
    lambda start, host, lines: b"\r\n".join([start, *host, *lines]) + b"\r\n\r\n",
    request_lines,
    st.sampled_from([[b"Host: a"]] * 9 + [[]]),
    st.lists(field_lines | st.sampled_from(KNOWN_LINES), max_size=5),
)


@dataclass(frozen=True)
class Chunked:
    """A right chunked body: as sent, and what it says."""

    wire: bytes
    data: bytes
    trailers: list[bytes] = field(default_factory=list)


@st.composite
def chunked_bodies(draw: st.DrawFn) -> Chunked:
    chunks = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=5))
    wire = bytearray()
    extensions = st.sampled_from([b"", b"", b"", b";a", b";a=b", b';a="b c"', b";;", b";\t\xff"])
    for chunk in chunks:
        size = b"%x" % len(chunk)
        if draw(st.booleans()):
            size = size.upper()
        wire += size.rjust(draw(st.integers(1, 15)), b"0") + draw(extensions) + b"\r\n" + chunk + b"\r\n"
    wire += draw(st.sampled_from([b"0", b"00", b"0"])) + draw(extensions) + b"\r\n"
    trailers = draw(st.lists(field_lines, max_size=3))
    wire += b"".join(line + b"\r\n" for line in trailers) + b"\r\n"
    return Chunked(bytes(wire), b"".join(chunks), trailers)


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data in some pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
