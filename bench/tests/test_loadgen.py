"""The load generator believes nothing: every wrong answer ends its run with a failure, and its counts are exact."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.loadgen import LoadResult, Mode, load
from bench.harness.pki import Pki, make_pki
from bench.harness.process import BenchError
from bench.harness.traffic import GET_2K, REPORT, WATCH, head, write_head
from bench.harness.upstream import watch_upstream
from bench.tests.crooked_server import Answer, CrookedServer

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nendpoint-load-metrics: TEXT eps=0\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nEndpoint-Load-Metrics: TEXT eps=0\r\n\r\n"
    b"2\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: x\r\n\r\n"
)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki") / "p256", "p256")


@pytest.fixture
def head_file(tmp_path: Path) -> Path:
    return write_head(tmp_path, GET_2K, "get")


def run(
    pki: Pki,
    port: int,
    head_file: Path,
    mode: Mode = "closed",
    deadline: float = 20.0,
    **options: int | float | str | None,
) -> LoadResult:
    options["require_header"] = REPORT
    caller = pki.load_balancer
    with load(mode, port, pki.ca, caller, head_file, name="load", deadline=deadline, **options) as started:
        started.ready()
        return started.run()


def failure(pki: Pki, head_file: Path, answer: Answer) -> str:
    with CrookedServer(pki, answer) as server, pytest.raises(BenchError) as caught:
        run(pki, server.port, head_file, connections=1, requests=3, length=5)
    return str(caught.value)


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED])
@pytest.mark.parametrize("piece", [1 << 20, 7, 1])
def test_right_answers_are_counted_however_they_arrive(
    pki: Pki, head_file: Path, answer: bytes, piece: int
) -> None:
    with CrookedServer(pki, lambda _: answer, piece) as server:
        result = run(pki, server.port, head_file, connections=3, warm_up=4, requests=11, length=5)
    assert (result.responses, result.body_bytes, result.handshakes, result.resumed) == (11, 55, 3, 0)
    assert len(server.requests) == 4 + 11


def test_the_head_arrives_as_written(pki: Pki, head_file: Path) -> None:
    with CrookedServer(pki, lambda _: LENGTH) as server:
        run(pki, server.port, head_file, connections=1, requests=2)
    expected = head(GET_2K).replace("\n", "\r\n").encode() + b"\r\n"
    assert server.requests == [expected, expected]
    assert 1250 < len(expected) < 1450


WRONG = {
    "status: status 503": LENGTH.replace(b"200 OK", b"503 No"),
    "length: 4 body bytes": LENGTH.replace(b"Content-Length: 5", b"Content-Length: 4").replace(
        b"hello", b"hell"
    ),
    "header: 0 lines": LENGTH.replace(b"endpoint-load-metrics", b"endpoint-load-metrics-x"),
    "header: 2 lines": LENGTH.replace(b"\r\n\r\n", b"\r\nENDPOINT-LOAD-METRICS: TEXT eps=1\r\n\r\n"),
    "framing: bytes after": LENGTH + b"!",
    "framing: both": LENGTH.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "framing: neither": LENGTH.replace(b"Content-Length", b"X-Content-Length"),
    "framing: two Content-Length": LENGTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n"),
    "framing: a malformed chunk size": CHUNKED.replace(b"2\r\nhe", b"2x\r\nhe"),
    "framing: a malformed chunk": CHUNKED.replace(b"3\r", b"3;ext=1\r"),
    "framing: no line end": CHUNKED.replace(b"3\r", b"2\r"),
    "framing: not an HTTP/1.1": LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0"),
}


@pytest.mark.parametrize("complaint", WRONG)
def test_wrong_answers_fail(pki: Pki, head_file: Path, complaint: str) -> None:
    assert complaint in failure(pki, head_file, lambda _: WRONG[complaint])


def test_a_wrong_answer_among_right_ones_fails(pki: Pki, head_file: Path) -> None:
    assert "status 500" in failure(
        pki, head_file, lambda number: LENGTH if number < 2 else LENGTH.replace(b"200", b"500")
    )


def test_a_connection_closed_instead_of_an_answer_fails(pki: Pki, head_file: Path) -> None:
    assert "unexpected eof" in failure(pki, head_file, lambda number: LENGTH if number < 1 else None)


def test_an_answer_that_does_not_end_meets_the_deadline(pki: Pki, head_file: Path) -> None:
    with CrookedServer(pki, lambda _: LENGTH[:-2]) as server, pytest.raises(BenchError, match="deadline"):
        run(pki, server.port, head_file, deadline=1.0, connections=1, requests=1)


def test_a_server_of_another_authority_fails(pki: Pki, head_file: Path, tmp_path: Path) -> None:
    other = make_pki(tmp_path / "other", "p256")
    with (
        CrookedServer(pki, lambda _: LENGTH) as server,
        pytest.raises(BenchError, match="certificate verify"),
    ):
        run(other, server.port, head_file, requests=1)


@pytest.mark.parametrize(("reuse", "resumed"), [("new", 0), ("resumed", 12)])
def test_a_new_connection_for_every_request(pki: Pki, head_file: Path, reuse: str, resumed: int) -> None:
    with CrookedServer(pki, lambda _: LENGTH) as server:
        result = run(pki, server.port, head_file, reuse=reuse, connections=3, warm_up=1, requests=12)
    assert (result.responses, result.handshakes, result.resumed) == (12, 12, resumed)
    assert server.resumed == resumed


def test_an_open_loop_counts_the_wait_for_a_connection(pki: Pki, head_file: Path) -> None:
    """100 requests/s for half a second on one connection, the first answer 0.5 s late: the others were due meanwhile,
    and their latency says so."""

    def answer(number: int) -> bytes:
        if number == 0:
            time.sleep(0.5)
        return LENGTH

    with CrookedServer(pki, answer) as server:
        result = run(pki, server.port, head_file, "open", connections=1, rate=100, duration=0.5)
    assert result.responses == 50
    assert result.p50 > 200_000
    assert result.p99 > 450_000


@pytest.fixture
def watches(pki: Pki, tmp_path: Path) -> Iterator[int]:
    with watch_upstream(tmp_path / "watches", pki, None, 20.0) as upstream:
        yield upstream.port


def test_every_event_of_every_watch_is_counted(pki: Pki, watches: int, tmp_path: Path) -> None:
    head_file = write_head(tmp_path, WATCH, "watch")
    result = run(pki, watches, head_file, "watch", connections=25, duration=1.0)
    assert 10 * 25 <= result.events <= 21 * 25
    assert result.p50 > 0


def test_the_watch_upstream_serves_objects_too(pki: Pki, watches: int, head_file: Path) -> None:
    result = run(pki, watches, head_file, connections=2, requests=20, length=2048)
    assert result.body_bytes == 20 * 2048
