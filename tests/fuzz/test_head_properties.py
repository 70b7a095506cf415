"""Properties of the head rules, for whatever comes in and in whatever pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orca_sidecar.core.errors import ProtocolError, RequestError, ResponseError
from orca_sidecar.core.head import HeadBuffer
from orca_sidecar.core.identity import IdentityRules
from orca_sidecar.core.request_head import RequestHead, request_memo
from orca_sidecar.core.request_rewrite import rewrite_request
from orca_sidecar.core.response_head import ResponseHead, response_memo
from orca_sidecar.core.response_rewrite import rewrite_response
from tests.fuzz.messages import TRICKY, field_lines, mutated, pieces, request_heads, some_bytes

RULES = IdentityRules(["X-Remote-User"], ["X-Remote-Group"], ["X-Remote-Uid"], ["X-Remote-Extra-"])
REQUESTS = request_memo(RULES.kind_of)
RESPONSES = response_memo()
LIMIT = 2000

anything_like_a_head = mutated(request_heads) | some_bytes(TRICKY, 0, 60)
response_heads = st.builds(
    lambda start, lines: b"\r\n".join([start, *lines]) + b"\r\n\r\n",
    st.sampled_from(
        [b"HTTP/1.1 200 OK"] * 4
        + [b"HTTP/1.0 200 OK", b"HTTP/1.1 101 S", b"HTTP/1.1 204 N", b"HTTP/1.1 429 "]
    ),
    st.lists(
        field_lines
        | st.sampled_from(
            [
                *(b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Connection: close", b"Upgrade: a"),
                *(
                    b"endpoint-load-metrics: TEXT a=1",
                    b"Connection: upgrade",
                    b"Keep-Alive: 5",
                    b"Content-Length: 4",
                ),
            ]
        ),
        max_size=6,
    ),
)


def request(parts: list[bytes]) -> tuple[RequestHead, bytes] | str:
    buffer = HeadBuffer(LIMIT, RequestError)
    for number, part in enumerate(parts):
        try:
            found = buffer.feed(part)
            if found is not None:
                return RequestHead(found[0], REQUESTS), found[1] + b"".join(parts[number + 1 :])
        except ProtocolError:
            return "refused"
    return "incomplete"


def described(result: tuple[RequestHead, bytes] | str) -> object:
    if isinstance(result, str):
        return result
    head, rest = result
    return (
        *(
            head.line.method,
            head.line.target,
            head.line.http10,
            head.lines,
            head.chunked,
            head.content_length,
        ),
        *(head.upgrades, head.wants_close, rest),
    )


@given(data=st.data(), wire=anything_like_a_head, rest=st.sampled_from([b"", b"GET /", b"\r\n", b"\x00"]))
def test_the_pieces_make_no_difference(data: st.DataObject, wire: bytes, rest: bytes) -> None:
    wire += rest
    whole = described(request([wire]))
    assert described(request(data.draw(pieces(wire)))) == whole
    assert described(request([wire[at : at + 1] for at in range(len(wire))])) == whole


@given(wire=anything_like_a_head)
def test_what_goes_upstream_reads_back_as_the_same_request(wire: bytes) -> None:
    """No line of a caller can become two, change the framing or add an identity on its way through."""
    result = request([wire])
    if isinstance(result, str):
        return
    head, rest = result
    own = [b"X-Remote-User: jane", b"X-Remote-Group: dev"]
    for identity in ([], own):
        again = request([rewrite_request(head, b"192.0.2.1", identity) + rest])
        assert not isinstance(again, str)
        sent, left = again
        assert left == rest
        assert (sent.line.method, sent.line.target) == (head.line.method, head.line.target)
        assert (sent.chunked, sent.content_length) == (head.chunked, head.content_length)
        assert sent.upgrades == head.upgrades
        assert [*sent.layout.identity(sent.lines)] == identity
        assert sent.layout.hosts == 1
        assert len(sent.layout.forwarded_for(sent.lines)) == 1
        assert not sent.layout.opt_ins
        ordinary = [line for kind, line in zip(head.layout.kinds, head.lines, strict=True) if not kind]
        assert [
            line for kind, line in zip(sent.layout.kinds, sent.lines, strict=True) if not kind
        ] == ordinary


@given(
    wire=mutated(response_heads),
    close=st.booleans(),
    report=st.sampled_from([b"", b"endpoint-load-metrics: a\r\n"]),
)
def test_what_goes_downstream_reads_back_as_the_same_response(
    wire: bytes, close: bool, report: bytes
) -> None:
    end = wire.find(b"\r\n\r\n")
    if end < 0:
        return
    try:
        head = ResponseHead(wire[:end], RESPONSES)
    except ResponseError:
        return
    out = rewrite_response(head, report, close=close, http10=False)
    assert out.index(b"\r\n\r\n") == len(out) - 4
    again = ResponseHead(out[:-4], RESPONSES)
    assert (again.code, again.line.reason, again.chunked, again.length) == (
        head.code,
        head.line.reason,
        head.chunked,
        head.length,
    )
    assert again.layout.reports == bool(report)
    assert again.says_close == (
        close or (head.says_close and head.code in (101, 426) and head.layout.has_upgrade)
    )
    ordinary = [line for kind, line in zip(head.layout.kinds, head.lines, strict=True) if not kind]
    assert [line for kind, line in zip(again.layout.kinds, again.lines, strict=True) if not kind] == ordinary
