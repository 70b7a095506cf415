"""Requests of which two readers could see different messages, by the class of desync that they were published as.

REFUSED: one 400 (or 431, 405, 505), the connection's last; nothing reaches the upstream. SERVED: framed in one way only,
however odd; exactly the targets named reach the upstream.
"""

from __future__ import annotations

HOST = b"Host: kubernetes\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: kubernetes\r\nX-Remote-User: admin\r\n\r\n"


def post(*lines: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return (
        b"POST /first "
        + version
        + b"\r\n"
        + HOST
        + b"".join(line + b"\r\n" for line in lines)
        + b"\r\n"
        + body
    )


def length(body: bytes) -> bytes:
    return b"Content-Length: %d" % len(body)


CHUNKED = b"Transfer-Encoding: chunked"
_END = b"0\r\n\r\n"

# Spellings of Transfer-Encoding that one reader takes and another does not (TE.TE). Each is sent alone, and beside a
# Content-Length that covers the chunks and a second request (CL.TE), or that ends inside them (TE.CL).
TRANSFER_ENCODINGS = [
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunkedx",
    b"Transfer-Encoding: chunked,",
    b"Transfer-Encoding: ,chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: chunked chunked",
    b"Transfer-Encoding: chunked;q=1",
    b'Transfer-Encoding: "chunked"',
    b"Transfer-Encoding: 'chunked'",
    b"Transfer-Encoding:",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding\t: chunked",
    b" Transfer-Encoding: chunked",
    b"\tTransfer-Encoding: chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: \x0cchunked",
    b"Transfer-Encoding: \x00chunked",
    b"Transfer-Encoding: chunked\x00",
    b"Transfer-Encoding: chunked\x0b",
    b"Transfer-Encoding\x00: chunked",
    b"Transfer-Encoding: chunked\r",
    b"Transfer-Encoding: \rchunked",
    b"Transfer-Encoding:\r\n chunked",
    b"Transfer-Encoding:\n chunked",
    b"Transfer-Encoding\r\n : chunked",
    b"Transfer-Encoding\n: chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\nX: y",
    b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\ntransfer-encoding: identity",
    b"Transfer-Encoding: chunk\xc3\xa9d",
    b"Transfer-Encoding: \xffchunked",
    b"Transfer-Encoding: chunked\xa0",
    b"(Transfer-Encoding: chunked",
    b"Transfer-Encoding:chunked\r\n\tx",
    b"Transfer\x85Encoding: chunked",
    b"Transfer-Encoding: deflate",
    b"Transfer-Encoding: chunked\x08",
    b"Transfer Encoding: chunked",
    b"\x01Transfer-Encoding: chunked",
]
CONTENT_LENGTHS = [
    b"Content-Length: +%d",
    b"Content-Length: -%d",
    b"Content-Length: 0x%x",
    b"Content-Length: %d, %d",
    b"Content-Length: %d,%d",
    b"Content-Length: %d\r\nContent-Length: %d",
    b"Content-Length: %d\r\ncontent-length: 0",
    b"Content-Length: 0\r\nContent-Length: %d",
    b"Content-Length: %d %d",
    b"Content-Length: %d;",
    b"Content-Length: %d\x00",
    b"Content-Length: \x00%d",
    b"Content-Length : %d",
    b"Content-Length\t: %d",
    b" Content-Length: %d",
    b"Content-Length:\r\n %d",
    b"Content-Length: \x0b%d",
    b"Content-Length: %d\r",
    b"Content-Length: %d.0",
    b"Content-Length: %de0",
    b"Content-Length: 1_0",
    b"Content-Length: ",
    b"Content-Length: %d\n",
    b"Content-Length: \xd9\xa1\xd9\xa2",
    b"X: y\nContent-Length: %d",
    b"X: y\rContent-Length: %d",
    b'Content-Length: "%d"',
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 18446744073709551616",
    b"Content-Length: \xb2",
    b"Content-Length\x00: %d",
    b"Content-Length: %d\r\n\x20\x20\x20",
    b"Content-Length: chunked",
]
# The lines of a chunked body that end, or may be thought to end, elsewhere (TERM.EXT, EXT.TERM, TERM.SPILL, ONE.TWO …).
CHUNKS = {
    "size ended by LF": b"3\nabc\r\n" + _END,
    "size ended by CR": b"3\rabc\r\n" + _END,
    "extension ended by LF": b"3;\nabc\r\n" + _END,
    "LF in an extension": b"3;a\nb\r\nabc\r\n" + _END,
    "CR in an extension": b"3;a\rb\r\nabc\r\n" + _END,
    "NUL in an extension": b"3;\x00\r\nabc\r\n" + _END,
    "LF CR after the size": b"3\n\rabc\r\n" + _END,
    "CR CR LF": b"3\r\r\nabc\r\n" + _END,
    "data ended by LF": b"3\r\nabc\n" + _END,
    "data ended by CR": b"3\r\nabc\r" + _END,
    "data ended by nothing": b"3\r\nabc" + _END,
    "two bytes of anything after data": b"3\r\nabcXX" + _END,
    "one byte too many": b"3\r\nabcd\r\n" + _END,
    "a blank before the size": b" 3\r\nabc\r\n" + _END,
    "a blank behind the size": b"3 \r\nabc\r\n" + _END,
    "a tab": b"3\t\r\nabc\r\n" + _END,
    "blanks before an extension": b"3 ;a\r\nabc\r\n" + _END,
    "hexadecimal prefix": b"0x3\r\nabc\r\n" + _END,
    "plus": b"+3\r\nabc\r\n" + _END,
    "minus": b"-3\r\nabc\r\n" + _END,
    "minus zero": b"-0\r\n\r\n",
    "underscore": b"0_3\r\nabc\r\n" + _END,
    "no digits": b"\r\nabc\r\n" + _END,
    "no digits but an extension": b";a\r\nabc\r\n" + _END,
    "not hexadecimal": b"g\r\nabc\r\n" + _END,
    "decimal point": b"3.0\r\nabc\r\n" + _END,
    "17 digits": b"00000000000000003\r\nabc\r\n" + _END,
    "overflow to 3": b"10000000000000003\r\nabc\r\n" + _END,
    "negative in 64 bits": b"ffffffffffffffff\r\nabc\r\n" + _END,
    "an endless extension": b"3;" + b"a" * 5000 + b"\r\nabc\r\n" + _END,
    "full-width digit": b"\xef\xbc\x93\r\nabc\r\n" + _END,
    "last chunk ended by LF": b"0\n\n",
    "end by LF": b"0\r\n\n",
    "end by CR": b"0\r\n\r\r\n",
    "last chunk by LF, end by CRLF": b"0\n\r\n",
    "a trailer ended by LF": b"0\r\nA: b\n\r\n",
    "a trailer that is none": b"0\r\nA\r\n\r\n",
    "a folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
    "a blank before a trailer's colon": b"0\r\nA : b\r\n\r\n",
    "a request in place of trailers": b"0\r\n" + SMUGGLED,
    "NUL in a trailer": b"0\r\nA: \x00\r\n\r\n",
    "CR in a trailer": b"0\r\nA: b\rC: d\r\n\r\n",
    "endless trailers": b"0\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
}
REQUEST_LINES = {
    "HTTP/0.9": b"GET /first\r\n\r\n",
    "version 0.9": b"GET /first HTTP/0.9\r\n" + HOST,
    "version 2": b"PRI * HTTP/2.0\r\n",
    "version 1.2": b"GET /first HTTP/1.2\r\n" + HOST,
    "two versions": b"GET /first HTTP/1.1 HTTP/1.1\r\n" + HOST,
    "small letters": b"GET /first http/1.1\r\n" + HOST,
    "a tab": b"GET\t/first HTTP/1.1\r\n" + HOST,
    "two blanks": b"GET  /first HTTP/1.1\r\n" + HOST,
    "a blank at the end": b"GET /first HTTP/1.1 \r\n" + HOST,
    "a blank at the start": b" GET /first HTTP/1.1\r\n" + HOST,
    "an empty line at the start": b"\r\nGET /first HTTP/1.1\r\n" + HOST,
    "LF at the start": b"\nGET /first HTTP/1.1\r\n" + HOST,
    "CR in the target": b"GET /fi\rrst HTTP/1.1\r\n" + HOST,
    "NUL in the target": b"GET /fi\x00rst HTTP/1.1\r\n" + HOST,
    "a blank in the target": b"GET /first /x HTTP/1.1\r\n" + HOST,
    "CR for CRLF": b"GET /first HTTP/1.1\rHost: kubernetes\r\n" + HOST,
    "LF for CRLF": b"GET /first HTTP/1.1\nHost: kubernetes\r\n",
    "LF everywhere": b"GET /first HTTP/1.1\nHost: kubernetes\n\n" + SMUGGLED,
    "LF CR LF as the end": b"GET /first HTTP/1.1\r\nHost: kubernetes\n\r\n" + SMUGGLED,
    "CONNECT": b"CONNECT kubernetes:443 HTTP/1.1\r\n" + HOST,
    "a target without a slash": b"GET first HTTP/1.1\r\n" + HOST,
    "an authority": b"GET kubernetes:443 HTTP/1.1\r\n" + HOST,
    "a quoted method": b'"GET" /first HTTP/1.1\r\n' + HOST,
    "a colon in the method": b"GET: /first HTTP/1.1\r\n" + HOST,
    "an asterisk with GET": b"GET * HTTP/1.1\r\n" + HOST,
    "no method": b" /first HTTP/1.1\r\n" + HOST,
    "VT": b"GET\x0b/first HTTP/1.1\r\n" + HOST,
    "another scheme": b"GET ftp://kubernetes/first HTTP/1.1\r\n" + HOST,
    "DEL": b"GET /fi\x7frst HTTP/1.1\r\n" + HOST,
}
FIELDS = {
    "no Host": b"GET /first HTTP/1.1\r\nX: y\r\n\r\n",
    "two Hosts": b"GET /first HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "two different Hosts": b"GET /first HTTP/1.1\r\n" + HOST + b"host: other\r\n\r\n",
    "Host folded": b"GET /first HTTP/1.1\r\nHost:\r\n a\r\n\r\n",
    "two Hosts on 1.0": b"GET /first HTTP/1.0\r\n" + HOST + HOST + b"\r\n",
    "no Host but an absolute target": b"GET http://a/first HTTP/1.1\r\n\r\n",
    "a fold": post(b"X: y", b" z"),
    "a fold by tab": post(b"X: y", b"\tz"),
    "a fold at first": b"GET /first HTTP/1.1\r\n x\r\n" + HOST + b"\r\n",
    "an empty fold": post(b"X: y", b" "),
    "a blank before the colon": post(b"X : y"),
    "no colon": post(b"X"),
    "no name": post(b": y"),
    "a control in a name": post(b"X\x01: y"),
    "UTF-8 in a name": post(b"X\xc3\xa4: y"),
    "a blank in a name": post(b"X Y: z"),
    "NUL in a value": post(b"X: \x00"),
    "CR in a value": post(b"X: y\rZ: w"),
    "LF in a value": post(b"X: y\nZ: w"),
    "BEL in a value": post(b"X: \x07"),
    "DEL in a value": post(b"X: \x7f"),
    "a request in a value by CR": post(b"X: y\r\rGET /smuggled HTTP/1.1\r" + HOST.strip()),
    "identity by CR": post(b"X: y\rX-Remote-User: admin"),
    "identity by LF": post(b"X: y\nX-Remote-User: admin"),
    "identity folded": post(b"X: y", b" X-Remote-User: admin"),
    "identity with a blank": post(b"X-Remote-User : admin"),
    "chunked on 1.0": post(CHUNKED, body=_END, version=b"HTTP/1.0"),
    "chunked on 1.0, kept alive": post(CHUNKED, b"Connection: keep-alive", body=_END, version=b"HTTP/1.0"),
    "a head without end": b"GET /first HTTP/1.1\r\nX: " + b"x" * 2_000_000,
}


def refused() -> dict[str, bytes]:
    """Every request that must not pass, by a name."""
    found: dict[str, bytes] = {}
    inner = _END + SMUGGLED
    for number, spelling in enumerate(TRANSFER_ENCODINGS):
        name = f"{number} {spelling!r}"
        # Alone, many are just as ambiguous: a reader that passes the line over sees no body and a second request.
        found[f"TE {name}"] = post(spelling, body=inner)
        found[f"CL.TE {name}"] = post(length(inner), spelling, body=inner)
        found[f"TE.CL {name}"] = post(
            spelling, b"Content-Length: 4", body=b"%x\r\n" % len(SMUGGLED) + SMUGGLED + b"\r\n" + _END
        )
    for name, lines in {
        "CL.TE": (length(inner), CHUNKED),
        "TE.CL": (CHUNKED, b"Content-Length: 0"),
        "TE.CL 4": (CHUNKED, b"Content-Length: 4"),
        "CL nominated away": (length(inner), CHUNKED, b"Connection: Content-Length"),
        "TE nominated away": (length(inner), CHUNKED, b"Connection: Transfer-Encoding"),
        "CL.TE with Expect": (length(inner), CHUNKED, b"Expect: 100-continue"),
    }.items():
        found[name] = post(*lines, body=inner)
    for spelling in CONTENT_LENGTHS:
        line = spelling.replace(b"%x", b"%d").replace(b"%d", b"%d" % len(SMUGGLED))
        found[f"CL {spelling!r}"] = post(line, body=SMUGGLED)
        found[f"CL {spelling!r} on GET"] = post(line, body=SMUGGLED).replace(b"POST", b"GET", 1)
    for name, body in CHUNKS.items():
        found[f"chunks: {name}"] = post(CHUNKED, body=body)
        found[f"chunks of DELETE: {name}"] = post(CHUNKED, body=body).replace(b"POST", b"DELETE", 1)
        found[f"second chunk: {name}"] = post(CHUNKED, body=b"1\r\nx\r\n" + body)
    found |= {f"request line: {name}": data + b"\r\n" for name, data in REQUEST_LINES.items()}
    found |= {f"fields: {name}": data for name, data in FIELDS.items()}
    return found


def served() -> dict[str, tuple[bytes, list[bytes]]]:
    """Odd, but framed in one way: the targets that reach the upstream. What looks like a second request is body."""
    get = b"GET /second HTTP/1.1\r\nHost: kubernetes\r\n\r\n"
    chunk = b"%x\r\n" % len(SMUGGLED) + SMUGGLED + b"\r\n"
    return {
        "a request as a body": (post(length(SMUGGLED), body=SMUGGLED) + get, [b"/first", b"/second"]),
        "a request as a body of GET (CL.0)": (
            post(length(SMUGGLED), body=SMUGGLED).replace(b"POST", b"GET", 1) + get,
            [b"/first", b"/second"],
        ),
        "a request as a chunk (TE.0)": (post(CHUNKED, body=chunk + _END) + get, [b"/first", b"/second"]),
        "a chunked DELETE": (
            post(CHUNKED, body=chunk + _END).replace(b"POST", b"DELETE", 1) + get,
            [b"/first", b"/second"],
        ),
        "a chunked HEAD": (
            post(CHUNKED, body=chunk + _END).replace(b"POST", b"HEAD", 1) + get,
            [b"/first", b"/second"],
        ),
        "a chunk within a chunk": (
            post(CHUNKED, body=b"5\r\n" + _END + b"\r\n" + _END) + get,
            [b"/first", b"/second"],
        ),
        "blanks around chunked": (
            post(b"Transfer-Encoding: \t chunked\t ", body=chunk + _END) + get,
            [b"/first", b"/second"],
        ),
        "an underscore": (
            post(b"Content_Length: 5", b"Transfer_Encoding: chunked") + get,
            [b"/first", b"/second"],
        ),
        "another name": (post(b"Content-Lengt: 5", b"X-Content-Length: 5") + get, [b"/first", b"/second"]),
        "obs-text": (
            post(b"X: \x85\xa0\xff", b"X:\xe5\x98\x8a\xe5\x98\x8dX-Remote-User: admin") + get,
            [b"/first", b"/second"],
        ),
        "leading zeros": (
            post(b"Content-Length: 000%d" % len(SMUGGLED), body=SMUGGLED) + get,
            [b"/first", b"/second"],
        ),
        "an extension that looks like an end": (
            post(CHUNKED, body=b"3;0\\r\\n\\r\\n\r\nabc\r\n" + _END) + get,
            [b"/first", b"/second"],
        ),
        "Connection nominates": (
            post(length(SMUGGLED), b"Connection: Content-Length, Host, X-Forwarded-For", body=SMUGGLED) + get,
            [b"/first", b"/second"],
        ),
        "h2c": (
            post(
                b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"
            ),
            [b"/first"],
        ),
        "an absolute target": (
            b"GET http://other/first HTTP/1.1\r\n" + HOST + b"\r\n" + get,
            [b"http://other/first", b"/second"],
        ),
        "Connection: close": (post(b"Connection: close") + SMUGGLED, [b"/first"]),
        "HTTP/1.0 kept alive": (post(b"Connection: keep-alive", version=b"HTTP/1.0") + SMUGGLED, [b"/first"]),
        "ten at once": (get * 10, [b"/second"] * 10),
    }


# Answers of which two readers could see different messages; a caller is told 502, or sees a cut.
RESPONSES = {
    "CL.TE": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + _END,
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nhello",
    "two equal lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
    "a signed length": b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
    "a blank before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
    "xchunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n" + _END,
    "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + _END,
    "chunked twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
    + _END,
    "chunked on 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _END,
    "chunked 204": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n" + _END,
    "a fold": b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n",
    "split by CR": b"HTTP/1.1 200 OK\r\nX: y\rSet-Cookie: a\r\nContent-Length: 0\r\n\r\n",
    "split by LF": b"HTTP/1.1 200 OK\r\nX: y\nSet-Cookie: a\r\nContent-Length: 0\r\n\r\n",
    "LF everywhere": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "NUL": b"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 0\r\n\r\n",
    "no colon": b"HTTP/1.1 200 OK\r\nX\r\nContent-Length: 0\r\n\r\n",
    "a malformed status line": b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\nContent-Length: 0\r\n\r\n",
    "a size ended by LF": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n" + _END,
    "a signed size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n" + _END,
    "an overflow": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n"
    + _END,
    "an unasked 101": b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
}
