"""Who a request goes upstream as: the identity rules, pure.

The proxy holds a certificate that kube-apiserver lets claim any identity. It is used on one pool of upstream
connections, for requests on which this module asserts an identity, and for nothing else:

| caller (what its connection proved) | request | pool | identity lines |
|---|---|---|---|
| FRONT_PROXY | names a user | FRONT_PROXY | as sent, under the first configured name of each list |
| FRONT_PROXY | names `system:anonymous` | refused | |
| FRONT_PROXY | names no user (or an empty one) | PLAIN | none |
| REPORT_ONLY, UNLISTED | any | PLAIN | none |
| CERTIFICATE | any | FRONT_PROXY | the certificate's own |
| CERTIFICATE that headers cannot express | any, also with a token | refused | |
| UNVERIFIED | bears a token | PLAIN | none |
| UNVERIFIED | bears none | refused | |
| NO_CERTIFICATE | any | PLAIN | none |

"Refused" is a 401 of the proxy's own. Every identity field of every request is deleted before lines are set,
whoever sent it; only a FRONT_PROXY's are read. Reading follows kube-apiserver's `headerrequest` and `x509`
authenticators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from math import inf
from operator import attrgetter
from typing import NamedTuple

from orca_sidecar.core.head import REQUEST_FIELDS, field_name, field_value
from orca_sidecar.core.memo import Memo

ANONYMOUS = "system:anonymous"
"""Never asserted: as a header it would bypass `--anonymous-auth=false`."""

CREDENTIAL_ID_KEY = "authentication.kubernetes.io/credential-id"
"""The extra key in which kube-apiserver (1.32 and later) says which certificate authenticated a user."""

_ANONYMOUS = ANONYMOUS.encode()
_STANDARD_NAMES = (b"x-remote-user", b"x-remote-group", b"x-remote-uid")
_STANDARD_PREFIX = b"x-remote-extra-"
_RESERVED = frozenset(REQUEST_FIELDS) | {b"authorization"}

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NOT_IN_EXTRA_KEY = re.compile(rb"[^!#$&'*+\-.^_`|~0-9A-Za-z]")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")

_WEBSOCKET_BEARER = b"base64url.bearer.authorization.k8s.io."
_KEPT_DECISIONS = 1024
_KEPT_DECISION_LENGTH = 2048


class IdentityField(IntEnum):
    """What an identity field says. STRIP: deleted, and honoured from nobody."""

    USER = 0
    GROUP = 1
    UID = 2
    EXTRA = 3
    STRIP = 4


class CallerKind(IntEnum):
    """What a connection's certificate proved, most of all by which authority it verifies against."""

    NO_CERTIFICATE = 0
    FRONT_PROXY = 1
    """Of the front-proxy authority, in `frontProxy.allowedNames`: speaks for others, may ask for reports."""
    REPORT_ONLY = 2
    """Of the front-proxy authority, in `loadMetrics.optIn.allowedNames` alone: may ask for reports."""
    CERTIFICATE = 3
    """Of the client authority: a user."""
    UNLISTED = 4
    """Of the front-proxy authority, its common name in no list, and not of the client authority either."""
    UNVERIFIED = 5
    """Nobody vouches for it: unknown authority, out of date, or not for client authentication."""


class Refusal(StrEnum):
    """Why a request is answered with 401. Values are metric labels; NONE is falsy."""

    NONE = ""
    ANONYMOUS = "anonymous"
    UNVERIFIED = "unverified_certificate"
    NO_NAME = "no_common_name"
    EMPTY_GROUP = "empty_organization"
    SEVERAL_UIDS = "several_uids"
    EMPTY_UID = "empty_uid"
    CONTROL_CHARACTER = "control_character"
    OUTER_BLANK = "outer_blank"

    @property
    def message(self) -> str:
        """A sentence for the caller. Holds nothing that a caller sent."""
        return _MESSAGES[self]


_MESSAGES = {
    Refusal.NONE: "",
    Refusal.ANONYMOUS: f"{ANONYMOUS} is not asserted for anybody",
    Refusal.UNVERIFIED: "the client certificate does not verify, and the request bears no token",
    Refusal.NO_NAME: "the client certificate has no common name",
    Refusal.EMPTY_GROUP: "the client certificate has an empty organization",
    Refusal.SEVERAL_UIDS: "the client certificate has more than one UID",
    Refusal.EMPTY_UID: "the client certificate has an empty UID",
    Refusal.CONTROL_CHARACTER: "the client certificate's identity holds a control character",
    Refusal.OUTER_BLANK: "the client certificate's identity begins or ends with a blank",
}


class Pool(IntEnum):
    """The two pools of upstream connections: without a client certificate, with the front-proxy client's."""

    PLAIN = 0
    FRONT_PROXY = 1


class Assertion(NamedTuple):
    """How a request goes upstream. A `refusal` outranks the rest."""

    pool: Pool
    lines: Sequence[bytes] = ()
    """Complete header lines without CRLF, only ever on the FRONT_PROXY pool."""
    refusal: Refusal = Refusal.NONE
    stripped: int = 0
    """Identity fields deleted that nobody was entitled to send."""


# For the request path: looking a member up costs more than the comparison it is for (70 ns on CPython 3.11).
_USER, _GROUP, _UID, _EXTRA = IdentityField.USER, IdentityField.GROUP, IdentityField.UID, IdentityField.EXTRA
_PLAIN_POOL, _FRONT_PROXY_POOL = Pool.PLAIN, Pool.FRONT_PROXY
_NOT_REFUSED = Refusal.NONE

_PLAIN = Assertion(Pool.PLAIN)
_UNVERIFIED = Assertion(Pool.PLAIN, refusal=Refusal.UNVERIFIED)


class Subject(NamedTuple):
    """The identity in a certificate's subject, as Go's `pkix.Name` and kube-apiserver read it."""

    common_name: str
    """The last CN; empty where there is none."""
    organizations: tuple[str, ...] = ()
    """Every O in DER order, duplicates kept."""
    uids: tuple[str, ...] = ()
    """Every value of OID 1.3.6.1.4.1.57683.2."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The verdict on a connection. It counts while `not_before <= now <= not_after` (Unix seconds) and while
    the trust store's generation is still `generation`.
    """

    kind: CallerKind
    common_name: str = ""
    lines: tuple[bytes, ...] = ()
    refusal: Refusal = Refusal.NONE
    not_before: float = -inf
    not_after: float = inf
    generation: int = 0
    detail: str = ""
    """Why a certificate is UNVERIFIED, for logs."""
    may_ask: bool = field(init=False)
    """Passes the gate `frontProxy`."""
    unclaimed: Assertion = field(init=False)
    """How a request goes that has no identity field, short of looking for a token."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "may_ask", self.kind in (CallerKind.FRONT_PROXY, CallerKind.REPORT_ONLY))
        unclaimed = _PLAIN
        if self.kind is CallerKind.UNVERIFIED:
            unclaimed = _UNVERIFIED
        elif self.kind is CallerKind.CERTIFICATE:
            unclaimed = (
                Assertion(Pool.PLAIN, refusal=self.refusal)
                if self.refusal
                else Assertion(Pool.FRONT_PROXY, self.lines)
            )
        object.__setattr__(self, "unclaimed", unclaimed)


_FRONT_PROXY = CallerKind.FRONT_PROXY


class Field(NamedTuple):
    """One identity field of a request, read."""

    kind: IdentityField
    rank: int
    """The place of its name, or prefix, in the configured list."""
    value: bytes
    line: bytes
    """The same under the first configured name of the list: what goes upstream if a front proxy sent it."""


class IdentityRules:
    """The configured names, and what they make of requests and certificates.

    Each argument is a list of header names (of prefixes, for `extra_prefixes`), as kube-apiserver's
    `--requestheader-*` flags: the first is written, all are read. Raises `ValueError` where reading them
    would be ambiguous; its text names the setting.
    """

    def __init__(
        self,
        username_headers: Sequence[str],
        group_headers: Sequence[str],
        uid_headers: Sequence[str] = (),
        extra_prefixes: Sequence[str] = (),
    ) -> None:
        self._written = tuple(
            names[0].encode() if names else b""
            for names in (username_headers, group_headers, uid_headers, extra_prefixes)
        )
        lists = [
            tuple(dict.fromkeys(name.encode().lower() for name in names))
            for names in (username_headers, group_headers, uid_headers, extra_prefixes)
        ]
        _check(*lists)
        self._ranks = {
            name: (IdentityField(kind), rank)
            for kind, names in enumerate(lists[:3])
            for rank, name in enumerate(names)
        }
        self._strip = frozenset(_STANDARD_NAMES) - self._ranks.keys()
        self._prefixes = lists[3]
        self._several = any(len(names) > 1 for names in lists)
        self._decided: dict[tuple[bytes, ...], Assertion] = {}
        self._fields = Memo(lambda line: self.read(field_name(line), field_value(line)), longest=256)
        self.field = self._fields.__getitem__
        """`field(line) -> Field`: read a valid, complete field line of a name that `kind_of` knows."""

    def kind_of(self, lower_name: bytes) -> IdentityField | None:
        """What a field of this name says, or None where it says nothing about identity."""
        if lower_name in self._ranks:
            return self._ranks[lower_name][0]
        if lower_name.startswith(self._prefixes):
            return IdentityField.EXTRA
        if lower_name in self._strip or lower_name.startswith(_STANDARD_PREFIX):
            return IdentityField.STRIP
        return None

    def read(self, name: bytes, value: bytes) -> Field:
        """Read one identity field: `name` as sent, `value` without outer blanks."""
        lower = name.lower()
        kind = self.kind_of(lower)
        if kind is IdentityField.EXTRA:
            rank, prefix = next(
                (rank, prefix) for rank, prefix in enumerate(self._prefixes) if lower.startswith(prefix)
            )
            return Field(kind, rank, value, self._line(kind, value, key=name[len(prefix) :]))
        if kind is None or kind is IdentityField.STRIP:
            return Field(IdentityField.STRIP, 0, b"", b"")
        return Field(kind, self._ranks[lower][1], value, self._line(kind, value))

    def assert_identity(self, caller: Caller, fields: Sequence[Field], lines: Iterable[bytes]) -> Assertion:
        """How a request of `caller` goes upstream.

        `fields` are its identity fields in the order sent, `lines` all its field lines: looked at for a
        token, and only where nothing else vouches for the caller.
        """
        if not fields:
            unclaimed = caller.unclaimed
            if unclaimed is _UNVERIFIED and bears_token(lines):
                return _PLAIN
            return unclaimed
        if caller.kind is CallerKind.FRONT_PROXY:
            return self._spoken_for(fields)
        return self.assert_identity(caller, (), lines)._replace(stripped=len(fields))

    def decide(self, caller: Caller, said: Sequence[bytes], lines: Iterable[bytes]) -> Assertion:
        """`assert_identity` for `said`, the identity fields' raw lines. What a front proxy says is remembered: it
        speaks for the same few users again and again, and what that comes to depends on the lines alone.
        """
        if said and caller.kind is _FRONT_PROXY:
            key = tuple(said)
            decided = self._decided.get(key)
            if decided is None:
                decided = self._spoken_for([*map(self.field, said)])
                if sum(map(len, key)) <= _KEPT_DECISION_LENGTH:
                    if len(self._decided) >= _KEPT_DECISIONS:
                        self._decided.clear()
                    self._decided[key] = decided
            return decided
        return self.assert_identity(caller, [*map(self.field, said)], lines)

    def _spoken_for(self, fields: Sequence[Field]) -> Assertion:
        """What a front proxy says, read as kube-apiserver's `headerrequest` does.

        User and UID: of each configured name the first line, and of those the first that is not empty.
        Groups: every line that is not empty. Extra: every line. Lines of one list go by the order of its
        names, then as sent.
        """
        if self._several:
            fields = sorted(fields, key=attrgetter("rank"))
        user = uid = user_line = uid_line = b""
        user_rank = uid_rank = -1
        groups: list[bytes] = []
        extras: list[bytes] = []
        stripped = 0
        for kind, rank, value, line in fields:
            if kind is _GROUP:
                if value:
                    groups.append(line)
            elif kind is _EXTRA:
                extras.append(line)
            elif kind is _USER:
                if not user and rank != user_rank:
                    user, user_line, user_rank = value, line, rank
            elif kind is _UID:
                if not uid and rank != uid_rank:
                    uid, uid_line, uid_rank = value, line, rank
            else:
                stripped += 1
        if not user:
            return Assertion(_PLAIN_POOL, stripped=len(fields))
        if user == _ANONYMOUS:
            return Assertion(_PLAIN_POOL, refusal=Refusal.ANONYMOUS, stripped=len(fields))
        said = [user_line, *groups]
        if uid:
            said.append(uid_line)
        said += extras
        return Assertion(_FRONT_PROXY_POOL, said, _NOT_REFUSED, stripped)

    def speak_for(self, subject: Subject, credential_id: str) -> tuple[tuple[bytes, ...], Refusal]:
        """The header lines that say a verified certificate's identity, or why headers cannot say it.

        What a direct connection would be: user the last CN, a group for every O, the UID, and `credential_id`
        as an extra. A subject that kube-apiserver would refuse, or that arrived as another one, is refused.
        """
        refusal = _unsayable(subject)
        if refusal:
            return (), refusal
        lines = [self._line(IdentityField.USER, subject.common_name.encode())]
        lines += (self._line(IdentityField.GROUP, group.encode()) for group in subject.organizations)
        if subject.uids and self._written[IdentityField.UID]:
            lines.append(self._line(IdentityField.UID, subject.uids[0].encode()))
        if self._prefixes:
            key = escape_extra_key(CREDENTIAL_ID_KEY)
            lines.append(self._line(IdentityField.EXTRA, credential_id.encode(), key))
        return tuple(lines), Refusal.NONE

    def _line(self, kind: IdentityField, value: bytes, key: bytes = b"") -> bytes:
        return self._written[kind] + key + b": " + value


def escape_extra_key(key: str) -> bytes:
    """An extra key as part of a header name: every byte that is no token character, and `%`, percent-encoded
    in upper case (client-go's `headerKeyEscape`; kube-apiserver lower-cases the name before it decodes).
    """
    return _NOT_IN_EXTRA_KEY.sub(lambda match: b"%%%02X" % match[0][0], key.encode())


def bears_token(lines: Iterable[bytes]) -> bool:
    """Whether kube-apiserver would find a bearer token in a request of these field lines, good or bad.

    By its `bearertoken` authenticator: the first Authorization line, `Bearer`, one blank and a token. By its
    `websocket` authenticator: an upgrade to websocket with a subprotocol that holds a token. A request that
    is let through by mistake is an anonymous one there, so that whatever is doubtful counts as none.
    """
    first: dict[bytes, bytes] = {}
    upgrades = False
    offers_token = False
    for line in lines:
        name = field_name(line).lower()
        if name == b"connection":
            upgrades = upgrades or b"upgrade" in line.lower()
        elif name == b"sec-websocket-protocol":
            offers_token = offers_token or any(
                protocol.strip(b" \t").startswith(_WEBSOCKET_BEARER)
                and len(protocol.strip(b" \t")) > len(_WEBSOCKET_BEARER)
                for protocol in field_value(line).split(b",")
            )
        elif name in (b"authorization", b"upgrade"):
            first.setdefault(name, field_value(line))
    scheme, _, rest = first.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and rest.partition(b" ")[0]:
        return True
    return offers_token and upgrades and first.get(b"upgrade", b"").lower() == b"websocket"


def _unsayable(subject: Subject) -> Refusal:
    """The first reason why a subject cannot go upstream as headers."""
    if not subject.common_name:
        return Refusal.NO_NAME
    if subject.common_name == ANONYMOUS:
        return Refusal.ANONYMOUS
    if "" in subject.organizations:
        return Refusal.EMPTY_GROUP
    if len(subject.uids) > 1:
        return Refusal.SEVERAL_UIDS
    if "" in subject.uids:
        return Refusal.EMPTY_UID
    for text in (subject.common_name, *subject.organizations, *subject.uids):
        value = text.encode()
        if _CONTROL.search(value):
            return Refusal.CONTROL_CHARACTER
        if value != value.strip(b" "):
            return Refusal.OUTER_BLANK
    return Refusal.NONE


def _check(
    usernames: Sequence[bytes], groups: Sequence[bytes], uids: Sequence[bytes], prefixes: Sequence[bytes]
) -> None:
    """Refuse configured names that could be read in two ways (all in lower case)."""
    if not usernames:
        raise ValueError("usernameHeaders: at least one name is needed")
    if not groups:
        raise ValueError("groupHeaders: at least one name is needed")
    names = [*usernames, *groups, *uids]
    for name in (*names, *prefixes):
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name.decode()!r} is not a header name")
    for name in names:
        if name in _RESERVED:
            raise ValueError(f"{name.decode()!r} has another meaning in HTTP and cannot name an identity")
        if names.count(name) > 1:
            raise ValueError(f"{name.decode()!r} is in more than one of the lists of identity headers")
    for prefix in prefixes:
        others = [*names, *_STANDARD_NAMES, *_RESERVED, *(other for other in prefixes if other != prefix)]
        for other in others:
            if other.startswith(prefix):
                raise ValueError(f"extraHeadersPrefix: {prefix.decode()!r} also matches {other.decode()!r}")
