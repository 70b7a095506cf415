"""Bodies: where they end, what is sent on, and what is refused, in whatever pieces they come."""

from __future__ import annotations

import pytest

from orca_sidecar.core.errors import RequestError, ResponseError
from orca_sidecar.core.framing import (
    LAST_CHUNK,
    NO_BODY,
    Body,
    ChunkedBody,
    LengthBody,
    UntilCloseBody,
    content_length,
    is_chunked,
    request_is_chunked,
)


def keep_all(line: bytes) -> bool:
    return True


def chunked(*, limit: int = 1000, decode: bool = False, keep=keep_all) -> ChunkedBody:  # type: ignore[no-untyped-def]
    return ChunkedBody(RequestError, keep, limit, decode=decode)


def feed(body: Body, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Everything that was sent on, and everything behind the end."""
    out: list[bytes] = []
    for number, piece in enumerate(pieces):
        forward, rest = body.feed(piece)
        out.append(forward)
        if body.done:
            return b"".join(out), rest + b"".join(pieces[number + 1 :])
        assert rest == b""
    return b"".join(out), b""


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


class TestLengthBody:
    @pytest.mark.parametrize("rest", [b"", b"x", b"0\r\n\r\n"])
    def test_it_ends_at_its_length(self, rest: bytes) -> None:
        for pieces in ([b"hello" + rest], bytewise(b"hello" + rest), [b"hel", b"lo" + rest]):
            body = LengthBody(5)
            assert not body.done
            assert feed(body, pieces) == (b"hello", rest)
            assert body.done

    def test_nothing_is_done_at_once(self) -> None:
        assert LengthBody(0).done
        assert LengthBody(0).feed(b"x") == (b"", b"x")

    def test_it_is_not_done_one_byte_early(self) -> None:
        body = LengthBody(10**15)
        assert body.feed(b"x") == (b"x", b"")
        assert body.remaining == 10**15 - 1
        assert not body.done


def test_no_body_is_done_and_takes_nothing() -> None:
    assert NO_BODY.done
    assert NO_BODY.feed(b"next") == (b"", b"next")


def test_a_body_until_close_never_ends_by_itself() -> None:
    body = UntilCloseBody()
    assert body.feed(b"a\r\n0\r\n\r\n") == (b"a\r\n0\r\n\r\n", b"")
    assert not body.done


MESSAGE = b"5\r\nhello\r\n00A\r\n0123456789\r\nb\r\n\r\n0\r\n\r\nabcd\r\n0\r\n"
PLAIN = MESSAGE + b"\r\n"


class TestChunkedBody:
    @pytest.mark.parametrize("rest", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\r\n", b"0\r\n\r\n"])
    def test_plain_chunks_pass_as_they_came(self, rest: bytes) -> None:
        for pieces in ([PLAIN + rest], bytewise(PLAIN + rest)):
            assert feed(chunked(), pieces) == (PLAIN, rest)

    def test_every_split_in_three_gives_the_same(self) -> None:
        data = b"3;e=1\r\nabc\r\n0;x\r\nA: b\r\nC: d\r\n\r\nREST"
        expected = (b"3\r\nabc\r\n0\r\nA: b\r\nC: d\r\n\r\n", b"REST")
        for first in range(len(data)):
            for second in range(first, len(data)):
                pieces = [data[:first], data[first:second], data[second:]]
                assert feed(chunked(), pieces) == expected
                assert feed(chunked(decode=True), pieces) == (b"abc", b"REST")

    def test_decoded_it_is_the_data_alone(self) -> None:
        data = b"hello" + b"0123456789" + b"\r\n0\r\n\r\nabcd"
        for pieces in ([PLAIN + b"!"], bytewise(PLAIN + b"!")):
            assert feed(chunked(decode=True), pieces) == (data, b"!")
        assert feed(chunked(decode=True), [MESSAGE + b"A: b\r\n\r\n"]) == (data, b"")

    def test_data_is_sent_on_at_once(self) -> None:
        """A watch event must not wait for the end of its chunk."""
        body = chunked()
        assert body.feed(b"64\r\n{")[0] == b"64\r\n{"
        assert body.feed(b'"a"')[0] == b'"a"'

    @pytest.mark.parametrize(
        ("size", "sent"),
        [
            (b"3;ext", b"3"), (b"3;a=b;c=\"d e\"", b"3"), (b"03;", b"03"), (b"000000000000003", b"000000000000003"),
            (b"3;\x80\xff\t ", b"3"),
        ],
    )  # fmt: skip
    def test_extensions_are_taken_off(self, size: bytes, sent: bytes) -> None:
        """RFC 9112 §7.1.1: a recipient must ignore those it does not know; a proxy may remove them."""
        data = size + b"\r\nabc\r\n0\r\n\r\n"
        for pieces in ([data], bytewise(data)):
            assert feed(chunked(), pieces) == (sent + b"\r\nabc\r\n0\r\n\r\n", b"")

    @pytest.mark.parametrize("last", [b"0", b"000", b"0;ext", b"00;a=b"])
    def test_the_last_chunk_is_written_anew(self, last: bytes) -> None:
        assert feed(chunked(), [last + b"\r\n\r\n"]) == (b"0\r\n\r\n", b"")

    @pytest.mark.parametrize(
        "data",
        [
            b"\r\n", b" 3\r\n", b"3 \r\n", b"3 ;a\r\n", b"\t3\r\n", b"0x3\r\n", b"+3\r\n", b"-3\r\n", b"g\r\n",
            b"3g\r\n", b"3,4\r\n",
            b"3\rabc\r\n", b"3\nabc", b"3;a\nabc\r\n", b"3;a\rb\r\n", b"3;\x00\r\n", b"3;\x7f\r\n",
            b"\xef\xbc\x93\r\n", b"3_0\r\n",
            b"1000000000000000\r\n", b"ffffffffffffffff\r\n", b"8000000000000000\r\n", b"0000000000000003\r\n",
            b"3\r\nabcd\r\n", b"3\r\nabc\n", b"3\r\nabc\rx", b"3\r\nabc\n0\r\n\r\n", b"3\r\nabc0\r\n\r\n",
            b"3\r\nabc\r\n\r\n", b"\n",
            b"3" + b";" * 5000 + b"\r\n", b"0" * 5000,
            b"0\r\nA\r\n\r\n", b"0\r\n A: b\r\n\r\n", b"0\r\nA: b\n\r\n", b"0\r\nA: b\n\n", b"0\r\n\n",
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("decode", [False, True])
    def test_malformed_framing_is_refused(self, data: bytes, decode: bool) -> None:
        """RFC 9112 §7.1 and §2.2."""

        def keep(line: bytes) -> bool:
            if not line[:1].isalpha() or b":" not in line or b"\n" in line:
                raise RequestError("no field line")
            return True

        with pytest.raises(RequestError):
            feed(chunked(decode=decode, keep=keep), [data])
        with pytest.raises(RequestError):
            feed(chunked(decode=decode, keep=keep), bytewise(data))

    def test_what_was_sent_on_before_a_fault_holds_nothing_of_it(self) -> None:
        body = chunked()
        assert body.feed(b"3\r\nabc\r\n3") == (b"3\r\nabc\r\n", b"")
        with pytest.raises(RequestError):
            body.feed(b"\nabc\r\n0\r\n\r\n")

    def test_the_error_is_the_sides_own(self) -> None:
        with pytest.raises(ResponseError):
            ChunkedBody(ResponseError, keep_all, 10).feed(b"x\r\n")

    def test_trailers_pass_by_rule_and_in_order(self) -> None:
        data = b"0\r\nA: 1\r\nDrop: 2\r\na: 3\r\n\r\nREST"
        for pieces in ([data], bytewise(data)):
            body = chunked(keep=lambda line: not line.startswith(b"Drop"))
            assert feed(body, pieces) == (b"0\r\nA: 1\r\na: 3\r\n\r\n", b"REST")

    def test_without_trailers_that_pass_the_end_is_plain(self) -> None:
        assert feed(chunked(keep=lambda line: False), [b"0\r\nA: 1\r\n\r\n"]) == (LAST_CHUNK, b"")

    def test_the_trailer_section_is_limited(self) -> None:
        line = b"A: b\r\n"
        fits = b"0\r\n" + line * 10 + b"\r\n"
        assert feed(chunked(limit=60), [fits])[0] == fits
        for pieces in ([fits], bytewise(fits)):
            with pytest.raises(RequestError, match="trailer section"):
                feed(chunked(limit=59), pieces)
        with pytest.raises(RequestError, match="too long"):
            feed(chunked(limit=59), [b"0\r\n" + b"A" * 100])

    def test_nothing_is_sent_of_an_end_that_is_not_complete(self) -> None:
        """The truncation must be seen as one."""
        body = chunked()
        assert feed(body, bytewise(b"1\r\nx\r\n0\r\nA: b\r\n")) == (b"1\r\nx\r\n", b"")
        assert not body.done

    def test_at_a_boundary_a_last_chunk_ends_what_was_sent(self) -> None:
        data = b"3;e\r\nabc\r\nA;xyz\r\n0123456789\r\n0;q\r\nT: u\r\n\r\n"
        boundaries = 0
        for pieces in (bytewise(data), [data[:20], data[20:]]):
            body = chunked()
            sent = b""
            for piece in pieces:
                sent += body.feed(piece)[0]
                if body.at_boundary and not body.done:
                    boundaries += 1
                    check = chunked(decode=True)
                    decoded, rest = check.feed(sent + LAST_CHUNK)
                    assert check.done
                    assert rest == b""
                    assert b"abc0123456789".startswith(decoded)
        assert boundaries > 10

    @pytest.mark.parametrize("sent", [b"3\r\n", b"3\r\nab", b"3\r\nabc", b"3\r\nabc\r"])
    def test_inside_a_chunk_there_is_no_boundary(self, sent: bytes) -> None:
        body = chunked()
        body.feed(sent)
        assert not body.at_boundary

    def test_a_large_chunk_is_not_copied_piece_by_piece(self) -> None:
        """What lies in the middle of a chunk is the very object that was read."""
        body = chunked()
        body.feed(b"FFFFFFFFFFFF\r\n")
        piece = b"x" * 65536
        assert body.feed(piece)[0] is piece


class TestLengths:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [([], None), ([b"0"], 0), ([b"42"], 42), ([b"007"], 7), ([b"9" * 18], 10**18 - 1)],
    )
    def test_accepted(self, values: list[bytes], expected: int | None) -> None:
        assert content_length(values, RequestError) == expected

    @pytest.mark.parametrize(
        "values",
        [
            [b""], [b"+1"], [b"-1"], [b"1 2"], [b"1,1"], [b"1, 1"], [b"1;"], [b"0x1"], [b"1_0"], [b"1.0"],
            [b"1e3"], [b"\xb2"],
            [b"\xd9\xa1"], [b"9" * 19], [b"1", b"1"], [b"1", b"2"], [b"1\x00"], [b"chunked"],
        ],
    )  # fmt: skip
    def test_refused(self, values: list[bytes]) -> None:
        """RFC 9110 §8.6, RFC 9112 §6.3; equal repetitions too, where the RFC would let one of them count."""
        with pytest.raises(ResponseError):
            content_length(values, ResponseError)


class TestCodings:
    @pytest.mark.parametrize("value", [b"chunked", b"Chunked", b"CHUNKED"])
    def test_chunked(self, value: bytes) -> None:
        assert is_chunked([value], RequestError)

    def test_none(self) -> None:
        assert not is_chunked([], RequestError)

    @pytest.mark.parametrize(
        "values",
        [
            [b""], [b"identity"], [b"gzip"], [b"gzip, chunked"], [b"chunked, gzip"], [b"chunked,"], [b",chunked"],
            [b"chunked;q=1"], [b"xchunked"], [b"chunkedx"], [b"chunked chunked"], [b"\x0bchunked"], [b'"chunked"'],
            [b"chunked", b"chunked"], [b"chunked", b"identity"], [b"identity", b"chunked"], [b"c\xc3\xbchunked"],
        ],
    )  # fmt: skip
    def test_refused(self, values: list[bytes]) -> None:
        """RFC 9112 §6.1."""
        with pytest.raises(RequestError):
            is_chunked(values, RequestError)


class TestRequestFraming:
    def test_each_alone(self) -> None:
        assert request_is_chunked([], [], old=False, error=RequestError) == (False, 0)
        assert request_is_chunked([b"7"], [], old=True, error=RequestError) == (False, 7)
        assert request_is_chunked([], [b"chunked"], old=False, error=RequestError) == (True, 0)

    @pytest.mark.parametrize("length", [b"0", b"5"])
    def test_both_are_refused(self, length: bytes) -> None:
        """RFC 9112 §6.3 item 3, where a server may go by Transfer-Encoding: stricter."""
        with pytest.raises(RequestError, match="beside"):
            request_is_chunked([length], [b"chunked"], old=False, error=RequestError)

    def test_transfer_encoding_on_http_1_0_is_refused(self) -> None:
        """RFC 9112 §6.1."""
        with pytest.raises(RequestError, match=r"HTTP/1\.0"):
            request_is_chunked([], [b"chunked"], old=True, error=RequestError)
