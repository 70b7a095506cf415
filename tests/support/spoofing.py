"""Forged identities, generated: every way to send one that is known, what must arrive of it, and a client to send it.

What must arrive is worked out here from the documented rules alone (docs/security.md, "Who a request goes upstream as"),
by another road than the sidecar's: nothing of the package is imported.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from tests.support.recorder import Arrival, Line

ROOT, MASTERS = b"root", b"system:masters"
TRAILER_LIMIT = 16 * 1024
CREDENTIAL_ID = b"authentication.kubernetes.io%2fcredential-id"


@dataclass(frozen=True)
class Names:
    """The configured names and prefixes."""

    user: tuple[bytes, ...]
    group: tuple[bytes, ...]
    uid: tuple[bytes, ...]
    extra: tuple[bytes, ...]

    @property
    def settings(self) -> dict[str, list[str]]:
        """The section `frontProxy` of a configuration."""
        lists = {
            "usernameHeaders": self.user,
            "groupHeaders": self.group,
            "uidHeaders": self.uid,
            "extraHeadersPrefix": self.extra,
        }
        return {key: [name.decode() for name in names] for key, names in lists.items()}


STANDARD = Names((b"X-Remote-User",), (b"X-Remote-Group",), (b"X-Remote-Uid",), (b"X-Remote-Extra-",))
CUSTOM = Names(
    (b"X-Auth-User", b"X-Remote-User"),
    (b"X-Auth-Group", b"Groups"),
    (),
    (b"X-Auth-Extra-", b"Extra."),
)
NAMES = {"standard": STANDARD, "custom": CUSTOM}


# -- the rules -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caller:
    """What a connection proved. `speaks`: for others. `says`: the identity in its certificate. `refused`: always, or
    without a token.
    """

    name: str
    speaks: bool = False
    says: tuple[bytes, ...] | None = None
    """The user, then the groups."""
    credential_id: bytes = b""
    refused: bool = False
    needs_token: bool = False


CALLERS = {
    caller.name: caller
    for caller in (
        Caller("none"),
        Caller("front proxy", speaks=True),
        Caller("report only"),
        Caller("unlisted"),
        Caller("user", says=(b"jane", b"developers")),
        Caller("front proxy's name, client CA", says=(b"balancer",)),
        Caller("unknown CA, front proxy's name", needs_token=True),
        Caller("expired user", needs_token=True),
        Caller("expired front proxy", needs_token=True),
        Caller("line break in the name", refused=True),
    )
}


class Expected(NamedTuple):
    """How a request goes upstream: `refused`, else on which pool and with which identity."""

    refused: bool
    with_certificate: bool = False
    user: tuple[bytes, ...] = ()
    groups: tuple[bytes, ...] = ()
    uid: tuple[bytes, ...] = ()
    extra: tuple[Line, ...] = ()
    """Lower-case names without prefix, and values."""
    odd: tuple[bytes, ...] = ()
    """Lower-case names that are identity's, but not ones that the sidecar writes, or that stand in a trailer."""


def expected(caller: Caller, names: Names, lines: Sequence[Line]) -> Expected:
    """What the table says of a request with these field lines."""

    def values(wanted: Iterable[bytes]) -> list[bytes]:
        return [v for name in wanted for n, v in lines if n.lower() == name.lower()]

    def first(wanted: Iterable[bytes]) -> bytes:
        """The first line of each name counts, and of these the first that is not empty."""
        return next((found[0] for name in wanted if (found := values([name])) and found[0]), b"")

    if caller.refused:
        return Expected(True)
    if caller.says:
        extra = ((CREDENTIAL_ID, caller.credential_id),)
        return Expected(False, True, caller.says[:1], caller.says[1:], extra=extra)
    if caller.needs_token and not _token(values([b"Authorization"])[:1]):
        return Expected(True)
    user = first(names.user) if caller.speaks else b""
    if not user:
        return Expected(False)
    if user == b"system:anonymous":
        return Expected(True)
    uid = first(names.uid)
    return Expected(
        False,
        True,
        (user,),
        tuple(value for value in values(names.group) if value),
        (uid,) if uid else (),
        tuple(
            (name[len(prefix) :].lower(), value)
            for prefix in names.extra
            for name, value in lines
            if name.lower().startswith(prefix.lower())
        ),
    )


def _token(authorization: list[bytes]) -> bool:
    return bool(authorization) and re.match(rb"(?i)bearer +[^ ]", authorization[0]) is not None


def arrived(arrival: Arrival, names: Names) -> Expected:
    """What a kube-apiserver with these names, or with the standard ones, could read of a request."""
    written = [n[0].lower() if n else None for n in (names.user, names.group, names.uid, names.extra)]
    found: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    extra: list[Line] = []
    odd: list[bytes] = []
    single = {n.lower() for s in (names, STANDARD) for n in (*s.user, *s.group, *s.uid)}
    prefixes = tuple({n.lower() for s in (names, STANDARD) for n in s.extra})
    for name, value in arrival.lines:
        lower = name.lower()
        if lower in written[:3]:
            found[written.index(lower)].append(value)
        elif written[3] and lower.startswith(written[3]):
            extra.append((lower[len(written[3]) :], value))
        elif lower in single or lower.startswith(prefixes):
            odd.append(lower)
    trailing = [name.lower() for name, _ in arrival.trailers]
    odd += [name for name in trailing if name in single or name.startswith(prefixes)]
    return Expected(
        False,
        arrival.with_certificate,
        tuple(found[0]),
        tuple(found[1]),
        tuple(found[2]),
        tuple(extra),
        tuple(odd),
    )


# -- what is forged --------------------------------------------------------------------------------------------

HEADERS: dict[str, tuple[bytes, bytes]] = {
    "user": (b"X-Remote-User", ROOT),
    "group": (b"X-Remote-Group", MASTERS),
    "uid": (b"X-Remote-Uid", b"0"),
    "extra": (b"X-Remote-Extra-Scopes", b"all"),
    "credential id": (b"X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id", b"X509SHA256=00"),
    "custom user": (b"X-Auth-User", ROOT),
    "custom group": (b"X-Auth-Group", MASTERS),
    "second custom group": (b"Groups", MASTERS),
    "custom extra": (b"X-Auth-Extra-Scopes", b"all"),
    "second custom extra": (b"Extra.Scopes", b"all"),
}

SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "as configured": lambda name: name,
    "lower": bytes.lower,
    "upper": bytes.upper,
    "swapped": bytes.swapcase,
    "alternating": lambda name: bytes(
        c ^ 0x20 if i % 2 and chr(c).isalpha() else c for i, c in enumerate(name)
    ),
    "underscores": lambda name: name.replace(b"-", b"_"),
    "last dash an underscore": lambda name: b"_".join(name.rsplit(b"-", 1)),
    "dash behind": lambda name: name + b"-",
    "dot for dash": lambda name: name.replace(b"-", b".", 1),
}
"""Names that are valid, whatever they mean."""

MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "blank before the colon": lambda name: name + b" ",
    "tab before the colon": lambda name: name + b"\t",
    "leading blank": lambda name: b" " + name,
    "leading tab": lambda name: b"\t" + name,
    "NUL within": lambda name: name[:3] + b"\0" + name[3:],
    "bare CR before": lambda name: b"\r" + name,
    "bare LF before": lambda name: b"X: y\n" + name,
    "bare CR within": lambda name: b"X: y\r" + name,
    "obs-text within": lambda name: name[:2] + "\u00ad".encode() + name[2:],
    "a letter that Unicode lowers to s": lambda name: name[:-1] + "\u017f".encode() + name[-1:],
    "vertical tab behind": lambda name: name + b"\x0b",
    "folded from the line before": lambda name: b"X: y\r\n " + name,
    "no name": lambda name: b"",
    "a second colon's blank": lambda name: b"(" + name,
}
"""Names that are none: 400, and the connection ends."""

VALUES: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda value: b" " + value,
    "no blank": lambda value: value,
    "blanks around": lambda value: b" \t " + value + b" \t",
    "empty": lambda value: b"",
    "blank": lambda value: b"  ",
    "obs-text": lambda value: b" " + value + "☃".encode() + b"\xff",
    "inner tab": lambda value: b" " + value + b"\t" + value,
    "list": lambda value: b" " + value + b", " + value,
    "long": lambda value: b" " + value + b"x" * 9000,
    "anonymous": lambda value: b" system:anonymous",
    "percent": lambda value: b" %0d%0aX-Remote-Group: system%3Amasters",
}

REPETITIONS: dict[str, Callable[[list[Line]], list[Line]]] = {
    "once": lambda lines: lines,
    "twice": lambda lines: lines * 2,
    "in two cases": lambda lines: [*lines, *((name.swapcase(), value) for name, value in lines)],
    "an empty one first": lambda lines: [*((name, b"") for name, _ in lines), *lines],
    "apart": lambda lines: [*lines, (b"X-Between", b" 1"), *lines],
    "40 times": lambda lines: lines * 40,
}

TOKENS: dict[str, list[Line]] = {
    "no token": [],
    "token": [(b"Authorization", b" Bearer joe-token")],
    "basic": [(b"Authorization", b" Basic amFuZTpqYW5l")],
    "impersonation": [
        (b"Authorization", b" Bearer joe-token"),
        (b"Impersonate-User", b" root"),
        (b"Impersonate-Group", b" system:masters"),
    ],
}

COMPANY: dict[str, list[Line]] = {
    "alone": [],
    "with a user": [(b"X-Remote-User", b" jane"), (b"X-Auth-User", b" jane")],
    "with a user and a group": [
        (b"X-Remote-Group", b" developers"),
        (b"X-Remote-User", b" jane"),
        (b"X-Auth-Group", b" developers"),
    ],
}
"""Further identity fields: what a front proxy says of its caller, and on other connections more of the same."""

SMUGGLED: list[Line] = [(b"X-Remote-User", b" root"), (b"X-Auth-User", b" root"), (b"Content-Length", b" 0")]
TRAILERS: list[Line] = [
    (b"X-Checksum", b" 1"),
    (b"Authorization", b" Bearer admin-token"),
    (b"Impersonate-User", b" root"),
]

PATHS = (
    "plain",
    "HEAD",
    "absolute target",
    "length",
    "chunked",
    "trailer",
    "upgrade refused",
    "upgrade accepted",
    "nominated",
    "after a local reply",
    "pipelined",
    "in pieces",
    "answered early",
    "HTTP/1.0",
)


@dataclass(frozen=True)
class Case:
    """One combination. `request` holds the field lines of the forging request, `trailers` those of its trailer section."""

    number: int
    names: str
    caller: str
    path: str
    header: str
    spelling: str
    value: str
    repetition: str
    token: str
    company: str
    forged: tuple[Line, ...] = field(default=(), compare=False)

    @property
    def malformed(self) -> bool:
        """It has to be refused with 400: for its name, or for trailers beyond the limit."""
        size = sum(len(name) + len(value) + 3 for name, value in (*self.forged, *TRAILERS))
        return self.spelling in MALFORMED or (self.path == "trailer" and size > TRAILER_LIMIT)

    def __str__(self) -> str:
        return " / ".join(
            (
                self.names,
                self.caller,
                self.path,
                self.header,
                self.spelling,
                self.value,
                self.repetition,
                self.token,
                self.company,
            )
        )

    def target(self, what: str) -> bytes:
        return b"/api/%d/%b" % (self.number, what.encode())

    @property
    def before(self) -> tuple[Line, ...]:
        """The forging request's lines beside the forged ones."""
        return (*COMPANY[self.company], *TOKENS[self.token])


def cases(rounds: int, seed: int = 6315) -> Iterator[Case]:
    """Every header on every path of every caller under both configurations, `rounds` times; spelling, value, repetition,
    token and company are dealt out so that each meets each of the first four about equally often.
    """
    deal = random.Random(seed)
    decks: dict[str, list[str]] = {}

    def draw(name: str, cards: Sequence[str]) -> str:
        deck = decks.setdefault(name, [])
        if not deck:
            deck.extend(deal.sample(cards, len(cards)))
        return deck.pop()

    # One name in eight is malformed: each ends its connection.
    spellings = [*SPELLINGS] * 11 + [*MALFORMED]
    number = 0
    for _ in range(rounds):
        for names, caller, path, header in product(NAMES, CALLERS, PATHS, HEADERS):
            if path == "after a local reply" and not (
                CALLERS[caller].speaks or CALLERS[caller].needs_token or CALLERS[caller].refused
            ):
                continue
            spelling = draw("spelling", spellings)
            value = draw("value", [*VALUES])
            repetition = draw("repetition", [*REPETITIONS])
            name, content = HEADERS[header]
            spelt = (SPELLINGS.get(spelling) or MALFORMED[spelling])(name)
            yield Case(
                number,
                names,
                caller,
                path,
                header,
                spelling,
                value,
                repetition,
                draw("token", [*TOKENS]),
                draw("company", [*COMPANY]),
                tuple(REPETITIONS[repetition]([(spelt, VALUES[value](content))])),
            )
            number += 1
