"""Properties of the framing rules, for whatever comes in and in whatever pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orca_sidecar.core.errors import ProtocolError, RequestError
from orca_sidecar.core.framing import LAST_CHUNK, ChunkedBody
from orca_sidecar.core.request_head import request_memo
from tests.fuzz.messages import Chunked, chunked_bodies, mutated, pieces

MEMO = request_memo()


def keep_all(line: bytes) -> bool:
    MEMO[line]
    return True


def new(decode: bool = False) -> ChunkedBody:
    return ChunkedBody(RequestError, keep_all, 1000, decode=decode)


def outcome(body: ChunkedBody, parts: list[bytes]) -> tuple[bytes, bytes] | str:
    """What was sent on and what is left behind the end, or that it was refused or is not complete."""
    sent: list[bytes] = []
    for number, part in enumerate(parts):
        try:
            out, rest = body.feed(part)
        except ProtocolError:
            return "refused"
        sent.append(out)
        if body.done:
            return b"".join(sent), rest + b"".join(parts[number + 1 :])
    return "incomplete"


@given(data=st.data(), body=chunked_bodies(), rest=st.binary(max_size=10), decode=st.booleans())
def test_a_right_body_ends_where_it_ends(
    data: st.DataObject, body: Chunked, rest: bytes, decode: bool
) -> None:
    result = outcome(new(decode), data.draw(pieces(body.wire + rest)))
    assert not isinstance(result, str)
    sent, left = result
    assert left == rest
    if decode:
        assert sent == body.data
    else:
        assert b";" not in sent or b";" in body.data + b"".join(body.trailers)
        assert outcome(new(decode=True), [sent]) == (body.data, b"")
        assert sent.endswith(b"".join(line + b"\r\n" for line in body.trailers) + b"\r\n")


@given(data=st.data(), wire=mutated(chunked_bodies().map(lambda body: body.wire)), decode=st.booleans())
def test_the_pieces_make_no_difference(data: st.DataObject, wire: bytes, decode: bool) -> None:
    whole = outcome(new(decode), [wire])
    assert outcome(new(decode), data.draw(pieces(wire))) == whole
    assert outcome(new(decode), [wire[at : at + 1] for at in range(len(wire))]) == whole


@given(wire=mutated(chunked_bodies().map(lambda body: body.wire)))
def test_what_is_sent_on_is_the_strictest_chunked_framing(wire: bytes) -> None:
    """Nothing but hex digits and CRLF frames it, whatever came: a second reader has nothing to misread."""
    result = outcome(new(), [wire])
    if isinstance(result, str):
        return
    sent = result[0]
    at = 0
    while True:
        end = sent.index(b"\r\n", at)
        digits = sent[at:end]
        assert digits
        assert all(digit in b"0123456789abcdefABCDEF" for digit in digits)
        size = int(digits, 16)
        at = end + 2 + size
        if size == 0:
            break
        assert sent[at : at + 2] == b"\r\n"
        at += 2
    assert outcome(new(decode=True), [wire]) == (outcome(new(decode=True), [sent])[0], result[1])


@given(data=st.data(), wire=mutated(chunked_bodies().map(lambda body: body.wire)))
def test_at_every_boundary_a_last_chunk_makes_it_whole(data: st.DataObject, wire: bytes) -> None:
    """How a watch is ended when the proxy leaves: what was relayed and a last chunk are a complete body."""
    body = new()
    sent = b""
    for part in data.draw(pieces(wire)):
        try:
            sent += body.feed(part)[0]
        except ProtocolError:
            return
        if body.done:
            return
        if body.at_boundary:
            ended = outcome(new(decode=True), [sent + LAST_CHUNK])
            assert not isinstance(ended, str)
            assert ended[1] == b""
