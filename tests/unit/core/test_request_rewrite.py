"""The way in: what of a request head goes upstream, byte for byte."""

from __future__ import annotations

import pytest

from orca_sidecar.core.request_head import RequestHead, request_memo
from orca_sidecar.core.request_rewrite import may_trail, rewrite_request

PEER = b"192.0.2.7"
IDENTITY = frozenset((b"x-remote-user", b"x-remote-group"))


def rewrite(
    *lines: bytes, identity: tuple[bytes, ...] = (), start: bytes = b"GET /a?b HTTP/1.1", host: bool = True
) -> list[bytes]:
    """The lines that go upstream, without the start line and without the Host line that is always there."""
    fields = [b"Host: a"] if host else []
    head = RequestHead(
        b"\r\n".join([start, *fields, *lines]), request_memo(lambda name: name if name in IDENTITY else None)
    )
    out = rewrite_request(head, PEER, identity)
    block, end, rest = out.partition(b"\r\n\r\n")
    assert end == b"\r\n\r\n"
    assert rest == b""
    sent = block.split(b"\r\n")
    assert sent[0] == start.rsplit(b" ", 1)[0] + b" HTTP/1.1"
    if host:
        assert sent[1] == b"Host: a"
        return sent[2:]
    return sent[1:]


OWN = b"X-Forwarded-For: " + PEER


def test_ordinary_lines_pass_as_sent_and_in_order() -> None:
    lines = [
        b"X-Thing: a", b"B:  two  blanks ", b"x-thing: b", b"Content-Length: 5", b"Accept:", b"A: \xff\xfe",
        b"X-Thing: a",
        b"Impersonate-User: u", b"Impersonate-Group: g", b"Impersonate-Group: h", b"X_Remote_User: u",
        b"Expect: 100-continue",
        b"Trailer: T", b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.dG9r, v5.channel.k8s.io",
        b"Authorization: Bearer t", b"Audit-ID: x", b"Via: 1.1 a", b"Forwarded: for=a", b"X-Real-Ip: 1",
        b"Cookie: a=b",
    ]  # fmt: skip
    assert rewrite(*lines) == [*lines, OWN]


@pytest.mark.parametrize("target", [b"//", b"/a/../b", b"/%2e?q=%", b"/\xc3\xa9", b"http://x/y", b"/a??y#z"])
def test_the_target_passes_as_sent(target: bytes) -> None:
    assert rewrite(start=b"GET " + target + b" HTTP/1.1") == [OWN]


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: keep-alive", b"Connection: close", b"Connection:", b"Connection: X-Remote-User, Authorization",
        b"Keep-Alive: timeout=5", b"Proxy-Connection: keep-alive", b"HTTP2-Settings: AAMAAABkAAQAAP__", b"TE: gzip",
        b"Upgrade: websocket", b"Endpoint-Load-Metrics-Request: TEXT", b"endpoint-load-metrics-request: secret",
        b"X-Remote-User: admin", b"X-REMOTE-GROUP: system:masters",
    ],
)  # fmt: skip
def test_removed(line: bytes) -> None:
    for lines in ([line, b"A: b"], [b"A: b", line], [line, b"A: b", line]):
        assert rewrite(*lines) == [b"A: b", OWN]
        assert rewrite(*lines, b"Connection: close") == [b"A: b", OWN]


def test_what_connection_nominates_stays() -> None:
    """kube-apiserver ignores nominations; RFC 9110 §7.6.1 would remove, and with it a length or a token."""
    lines = [b"Connection: Content-Length, Authorization, A, X-Forwarded-For, Host"]
    kept = [b"Content-Length: 0", b"Authorization: Bearer t", b"A: b"]
    assert rewrite(*lines, *kept) == [*kept, OWN]


class TestForwardedFor:
    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            ([], OWN),
            ([b"X-Forwarded-For: 1"], b"X-Forwarded-For: 1, 192.0.2.7"),
            ([b"x-forwarded-for:1,2"], b"x-forwarded-for:1,2, 192.0.2.7"),
            ([b"X-Forwarded-For:"], b"X-Forwarded-For: 192.0.2.7"),
            ([b"X-Forwarded-For: 1", b"X-Forwarded-For: 2"], b"X-Forwarded-For: 1, 2, 192.0.2.7"),
            (
                [b"X-Forwarded-For:", b"x-forwarded-for: 2", b"X-FORWARDED-FOR: "],
                b"X-Forwarded-For: 2, 192.0.2.7",
            ),
            ([b"X-Forwarded-For: , ", b"X-Forwarded-For:"], b"X-Forwarded-For: ,, 192.0.2.7"),
        ],
    )
    @pytest.mark.parametrize("hop", [[], [b"Connection: keep-alive"], [b"TE: trailers"]])
    def test_one_line_with_the_peer_last_where_the_first_one_stood(
        self, hop: list[bytes], sent: list[bytes], expected: bytes
    ) -> None:
        out = rewrite(b"A: b", *sent, b"C: d", *hop)
        assert [line for line in out if line[:1] in b"xX"] == [expected]
        assert out.index(expected) == (1 if sent else len(out) - 1)


class TestHops:
    def test_an_upgrade_keeps_its_fields_in_place(self) -> None:
        lines = [b"Upgrade: SPDY/3.1", b"X-Stream-Protocol-Version: v4", b"connection: keep-alive, upgrade"]
        assert rewrite(*lines, b"X-Stream-Protocol-Version: v3") == [
            b"Upgrade: SPDY/3.1", b"X-Stream-Protocol-Version: v4", b"Connection: Upgrade",
            b"X-Stream-Protocol-Version: v3", OWN,
        ]  # fmt: skip

    def test_several_connection_lines_become_one(self) -> None:
        out = rewrite(b"Connection: keep-alive", b"Upgrade: a", b"Upgrade: b", b"Connection: upgrade, close")
        assert out == [b"Connection: Upgrade", b"Upgrade: a", b"Upgrade: b", OWN]

    def test_an_upgrade_to_h2c_becomes_an_ordinary_request(self) -> None:
        lines = [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"]
        assert rewrite(*lines) == [OWN]
        assert rewrite(b"Connection: Upgrade", b"Upgrade: websocket, h2c") == [OWN]

    @pytest.mark.parametrize(
        "te", [b"TE: trailers", b"te:Trailers;q=0.5", b"TE: deflate, trailers", b"TE: gzip;q=1 , \ttrailers"]
    )
    def test_te_passes_trailers_alone(self, te: bytes) -> None:
        """RFC 9110 §10.1.4."""
        assert rewrite(te) == [b"TE: trailers", OWN]
        assert rewrite(b"TE: gzip", te, b"TE: trailers") == [b"TE: trailers", OWN]

    @pytest.mark.parametrize("te", [b"TE:", b"TE: xtrailers", b"TE: trailersx", b"TE: deflate"])
    def test_other_te_goes(self, te: bytes) -> None:
        assert rewrite(te) == [OWN]


class TestIdentity:
    LINES = (b"X-Remote-User: jane", b"X-Remote-Group: dev", b"X-Remote-Group: ops")

    def test_it_comes_last_as_decided(self) -> None:
        assert rewrite(b"A: b", identity=self.LINES) == [b"A: b", OWN, *self.LINES]

    @pytest.mark.parametrize(
        "connection", [b"Connection: X-Remote-User, X-Remote-Group", b"Connection:", b"Connection: upgrade"]
    )
    def test_no_connection_line_takes_it_away(self, connection: bytes) -> None:
        lines = (b"Connection:", connection, b"Upgrade: websocket", b"X-Remote-User: forged")
        assert rewrite(*lines, identity=self.LINES)[-3:] == [*self.LINES]
        assert b"X-Remote-User: forged" not in rewrite(*lines, identity=self.LINES)


class TestHTTP10:
    def test_it_goes_upstream_as_1_1(self) -> None:
        assert rewrite(b"Connection: keep-alive", start=b"GET / HTTP/1.0") == [OWN]

    def test_without_a_host_it_is_given_an_empty_one(self) -> None:
        """HAProxy's health check sends none; on 1.1 there must be one, empty if nothing is known (RFC 9112 §3.2)."""
        assert rewrite(start=b"OPTIONS / HTTP/1.0", host=False) == [b"Host:", OWN]
        assert rewrite(b"A: b", b"Connection: close", start=b"OPTIONS / HTTP/1.0", host=False) == [
            b"Host:", b"A: b", OWN,
        ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        b"authorization", b"proxy-authorization", b"cookie", b"expect", b"range", b"impersonate-user",
        b"impersonate-extra-scopes", b"if-match", b"content-type", b"content-encoding", b"x-real-ip", b"trailer",
    ],
)  # fmt: skip
def test_these_do_not_trail(name: bytes) -> None:
    """RFC 9110 §6.5.1."""
    assert not may_trail(name)


@pytest.mark.parametrize("name", [b"grpc-status", b"x-checksum", b"digest", b"x-thing"])
def test_others_do(name: bytes) -> None:
    assert may_trail(name)


def test_a_head_of_nine_thousand_lines_costs_no_more_than_their_number() -> None:
    """One request must not hold up all others: removing lines one by one from a long list would."""
    head = b"\r\n".join(
        [
            b"GET / HTTP/1.1",
            b"Host: a",
            *[b"TE: x"] * 3_000,
            *[b"A: b"] * 3_000,
            *[b"X-Remote-User: u"] * 3_000,
        ]
    )
    memo = request_memo(lambda name: name if name in IDENTITY else None)
    out = rewrite_request(RequestHead(head, memo), PEER, ())
    assert out.count(b"\r\n") == 3_000 + 4
