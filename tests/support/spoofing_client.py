"""Plays the cases of `tests.support.spoofing`, and judges what arrived of them."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.support.recorder import Arrival, Line
from tests.support.spoofing import (
    CALLERS,
    HEADERS,
    NAMES,
    SMUGGLED,
    TOKENS,
    TRAILERS,
    Caller,
    Case,
    arrived,
    expected,
)

FORGING = (b"forging", b"refused", b"accepted", b"early")


# -- sending it ------------------------------------------------------------------------------------------------


def trimmed(lines: Iterable[Line]) -> list[Line]:
    return [(name, value.strip(b" \t")) for name, value in lines]


def message(method: bytes, target: bytes, lines: Iterable[Line], version: bytes = b"HTTP/1.1") -> bytes:
    """A request's head; values are sent behind the colon as they are."""
    fields = b"".join(b"%b:%b\r\n" % line for line in lines)
    return b"%b %b %b\r\nHost: kubernetes\r\n%b\r\n" % (method, target, version, fields)


@dataclass
class Answer:
    code: int
    closes: bool


class Connection:
    """A caller's connection, opened when first needed and again after it ended."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port, self._context = port, context
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, *pieces: bytes) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._context, server_hostname="kubernetes"
            )
        _, writer = self._streams
        for piece in pieces[:-1]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(pieces[-1])

    async def answer(self, method: bytes = b"GET") -> Answer:
        """Read one answer. One that says that the connection ends must be the last."""
        assert self._streams is not None
        reader, _ = self._streams
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
            code = int(head[9:12])
            length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
            if length and method != b"HEAD":
                await reader.readexactly(int(length[1]))
        return Answer(code, b"\r\nConnection: close\r\n" in head)

    async def ended(self) -> bool:
        """Whether the sidecar ends the connection and sends nothing more."""
        assert self._streams is not None
        async with asyncio.timeout(20):
            return await self._streams[0].read() == b""

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Outcome:
    """What was seen of a case on the caller's side, and the field lines sent."""

    case: Case
    forging: list[Line]
    after: list[Line] | None
    """None: the connection ended before."""
    problems: list[str] = field(default_factory=list)


async def play(case: Case, connection: Connection) -> Outcome:
    """Send a case: a request that forges, and where the connection goes on, an innocent one."""
    caller, names = CALLERS[case.caller], NAMES[case.names]
    forged, before = list(case.forged), list(case.before)
    lines = [*forged, *before] if case.number % 2 else [*before, *forged]
    if case.path == "trailer":
        lines = before
    innocent: list[Line] = [(b"X-Remote-User", b" victim")] if caller.speaks and case.number % 3 else []
    if caller.needs_token or case.number % 5 == 0:
        innocent = [*innocent, *TOKENS["token"]]
    after = message(b"GET", case.target("after"), innocent)
    smuggled = message(b"POST", case.target("smuggled"), SMUGGLED)
    outcome = Outcome(case, trimmed(lines), None)

    def check(seen: Answer, code: int, what: str) -> None:
        if seen.code != code:
            outcome.problems.append(f"{what} was answered {seen.code}, not {code}")

    if case.path == "after a local reply":
        refused = [(b"X-Remote-User", b" system:anonymous"), (b"X-Auth-User", b" system:anonymous")]
        await connection.send(message(b"GET", case.target("never"), refused))
        check(await connection.answer(), 401, "a request to refuse")

    method, code = b"GET", 200
    pieces: tuple[bytes, ...]
    if case.path == "HEAD":
        method = b"HEAD"
        pieces = (message(method, case.target("forging"), lines),)
    elif case.path == "absolute target":
        pieces = (message(method, b"https://other" + case.target("forging"), lines),)
    elif case.path == "length":
        length = (b"Content-Length", b" %d" % len(smuggled))
        pieces = (message(b"POST", case.target("forging"), [length, *lines]) + smuggled,)
    elif case.path in ("chunked", "trailer"):
        head = message(b"POST", case.target("forging"), [*lines, (b"Transfer-Encoding", b" chunked")])
        body = b"%x;a=b\r\n%b\r\n" % (len(smuggled), smuggled)
        section = [*forged, *TRAILERS] if case.path == "trailer" else []
        end = b"".join(b"%b:%b\r\n" % line for line in section)
        pieces = (head + body + b"0\r\n" + end + b"\r\n",)
    elif case.path.startswith("upgrade"):
        code = 403 if case.path == "upgrade refused" else 101
        asks: list[Line] = [(b"Connection", b" keep-alive, Upgrade"), (b"Upgrade", b" SPDY/3.1")]
        pieces = (message(method, case.target(case.path.removeprefix("upgrade ")), [*asks, *lines]),)
    elif case.path == "nominated":
        nominees = {name for name, _ in HEADERS.values() if name} | {name.title() for name, _ in before}
        nominated = [(b"Connection", b""), (b"Connection", b" " + b", ".join(sorted(nominees)))]
        pieces = (message(method, case.target("forging"), [*nominated, *lines]),)
    elif case.path == "pipelined":
        pieces = (message(method, case.target("forging"), lines) + after,)
    elif case.path == "in pieces":
        whole = message(method, case.target("forging"), lines)
        cuts = sorted(random.Random(case.number).sample(range(1, len(whole)), 3))
        pieces = tuple(whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True))
    elif case.path == "answered early":
        code = 413
        length = (b"Content-Length", b" %d" % len(smuggled))
        pieces = (message(b"POST", case.target("early"), [length, *lines]),)
    elif case.path == "HTTP/1.0":
        pieces = (message(method, case.target("forging"), lines, b"HTTP/1.0"),)
    else:
        pieces = (message(method, case.target("forging"), lines),)

    if case.malformed:
        code = 400
    elif expected(caller, names, outcome.forging).refused:
        code = 401
    await connection.send(*pieces)
    # What was asked for in a malformed request is not known: even a HEAD is answered with a body.
    answer = await connection.answer(b"" if case.malformed else method)
    check(answer, code, "the forging request")
    if code == 413:
        await connection.send(smuggled)
    if code == 101:
        await connection.send(smuggled)
        connection.close()
    elif answer.closes:
        if not await connection.ended():
            outcome.problems.append("more came behind an answer that said it was the last")
        connection.close()
    else:
        outcome.after = trimmed(innocent)
        if case.path != "pipelined":
            await connection.send(after)
        goes_on = await connection.answer()
        check(goes_on, 401 if caller.refused else 200, "the request after it")
    must_end = case.malformed or case.path in ("HTTP/1.0", "answered early")
    if must_end and not (answer.closes or code == 101):
        outcome.problems.append("the connection goes on")
    return outcome


# -- judging it ------------------------------------------------------------------------------------------------


def escapes(outcome: Outcome, arrivals: Sequence[Arrival], caller: Caller) -> list[str]:
    """Everything that is not as the rules have it about what arrived of a case."""
    case, names = outcome.case, NAMES[outcome.case.names]
    found = list(outcome.problems)
    by_what: dict[bytes, list[Arrival]] = {}
    for arrival in arrivals:
        by_what.setdefault(arrival.target.rpartition(b"/")[2], []).append(arrival)
    after = by_what.pop(b"after", [])
    forging = [arrival for what in FORGING for arrival in by_what.pop(what, [])]
    found += [f"{what.decode()} arrived" for what in by_what]

    def compare(what: str, seen: list[Arrival], lines: list[Line]) -> None:
        wanted = expected(caller, names, lines)
        if wanted.refused:
            if seen:
                found.append(f"{what} arrived, but is to be refused")
            return
        if len(seen) != 1:
            found.append(f"{what} arrived {len(seen)} times")
            return
        if (got := arrived(seen[0], names)) != wanted:
            found.append(f"{what} arrived as {got}, not {wanted}")
        for name in (b"Authorization", b"Impersonate-User", b"Impersonate-Group"):
            sent = [value for other, value in lines if other == name]
            if seen[0].values(name) != sent:
                found.append(f"{what} arrived with {name.decode()} {seen[0].values(name)}, not {sent}")
            if any(name.lower() == other.lower() for other, _ in seen[0].trailers):
                found.append(f"{what} arrived with {name.decode()} in its trailers")

    if not case.malformed:
        compare("the forging request", forging, outcome.forging)
    elif case.path == "trailer" and forging:
        # Its head was passed on before its trailers came; a request that never ends is none.
        compare("the unfinished request", forging, outcome.forging)
        if forging[0].complete:
            found.append("a request with malformed trailers was completed")
    elif forging:
        found.append("a malformed request arrived")
    if outcome.after is not None:
        compare("the request after it", after, outcome.after)
    elif after:
        found.append("the request after it arrived on a connection that had ended")
    return found
