"""The identity rules. `TABLE` has the lines of the table in `core.identity`, in its order, with every caller."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import pytest

from orca_sidecar.core.identity import (
    Assertion,
    Caller,
    CallerKind,
    IdentityField,
    IdentityRules,
    Pool,
    Refusal,
    Subject,
    bears_token,
    escape_extra_key,
)
from tests.unit.core.identity_callers import CALLERS, CUSTOM, FRONT_PROXY, JANE, RULES, WITHOUT_UID, ask

TOKEN = b"Authorization: Bearer abc"
BASIC = b"Authorization: Basic amFuZTpwdw=="
PROTOCOL = b"base64url.bearer.authorization.k8s.io.YWJj"
WEBSOCKET = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Protocol: v5.channel.k8s.io, " + PROTOCOL,
)
FORGED = (b"X-Remote-User: admin", b"X-Remote-Group: system:masters", b"X-Remote-Extra-Scopes: all")
NOBODY = (b"X-Remote-User: system:anonymous",)
EMPTY = (b"X-Remote-User:", b"X-Remote-Group: system:masters")


class Row(NamedTuple):
    caller: str
    request: tuple[bytes, ...]
    pool: Pool
    lines: tuple[bytes, ...] = ()
    refusal: Refusal = Refusal.NONE
    stripped: int = 0


PLAIN, ASSERTED = Pool.PLAIN, Pool.FRONT_PROXY
TABLE = [
    # A front proxy that names a user: as sent, with or without a token of somebody.
    Row("front proxy", FORGED, ASSERTED, FORGED),
    Row("front proxy", (TOKEN, *FORGED), ASSERTED, FORGED),
    Row("front proxy", (BASIC, *FORGED, *WEBSOCKET), ASSERTED, FORGED),
    # … that names system:anonymous.
    Row("front proxy", NOBODY, PLAIN, refusal=Refusal.ANONYMOUS, stripped=1),
    Row("front proxy", (TOKEN, *NOBODY), PLAIN, refusal=Refusal.ANONYMOUS, stripped=1),
    # … that names no user, or an empty one: groups alone say nothing.
    Row("front proxy", (), PLAIN),
    Row("front proxy", (TOKEN,), PLAIN),
    Row("front proxy", (BASIC,), PLAIN),
    Row("front proxy", WEBSOCKET, PLAIN),
    Row("front proxy", EMPTY, PLAIN, stripped=2),
    Row("front proxy", FORGED[1:], PLAIN, stripped=2),
    Row("front proxy", (TOKEN, *FORGED[1:]), PLAIN, stripped=2),
    # Those that a front-proxy authority vouches for and that may not speak for others.
    *(
        row
        for caller in ("report only", "unlisted")
        for row in (
            Row(caller, (), PLAIN),
            Row(caller, (TOKEN,), PLAIN),
            Row(caller, FORGED, PLAIN, stripped=3),
            Row(caller, (TOKEN, *FORGED), PLAIN, stripped=3),
            Row(caller, NOBODY, PLAIN, stripped=1),
        )
    ),
    # A user's certificate: its own identity, whatever the request says.
    Row("certificate", (), ASSERTED, JANE),
    Row("certificate", (TOKEN,), ASSERTED, JANE),
    Row("certificate", WEBSOCKET, ASSERTED, JANE),
    Row("certificate", FORGED, ASSERTED, JANE, stripped=3),
    Row("certificate", NOBODY, ASSERTED, JANE, stripped=1),
    # … that headers cannot express: never a weaker identity, never a token's.
    Row("unsayable certificate", (), PLAIN, refusal=Refusal.NO_NAME),
    Row("unsayable certificate", (TOKEN,), PLAIN, refusal=Refusal.NO_NAME),
    Row("unsayable certificate", FORGED, PLAIN, refusal=Refusal.NO_NAME, stripped=3),
    # A certificate that nobody vouches for: the token's user, if there is a token.
    Row("unverified", (TOKEN,), PLAIN),
    Row("unverified", WEBSOCKET, PLAIN),
    Row("unverified", (TOKEN, *FORGED), PLAIN, stripped=3),
    # … and none.
    Row("unverified", (), PLAIN, refusal=Refusal.UNVERIFIED),
    Row("unverified", (BASIC,), PLAIN, refusal=Refusal.UNVERIFIED),
    Row("unverified", FORGED, PLAIN, refusal=Refusal.UNVERIFIED, stripped=3),
    # No certificate: whatever the credentials, kube-apiserver decides.
    Row("no certificate", (), PLAIN),
    Row("no certificate", (TOKEN,), PLAIN),
    Row("no certificate", (BASIC,), PLAIN),
    Row("no certificate", WEBSOCKET, PLAIN),
    Row("no certificate", FORGED, PLAIN, stripped=3),
    Row("no certificate", NOBODY, PLAIN, stripped=1),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.caller}: {b' | '.join(row.request).decode()}")
def test_table(row: Row) -> None:
    found = ask(CALLERS[row.caller], *row.request)
    assert (found.pool, tuple(found.lines), found.refusal, found.stripped) == row[2:]


def test_table_has_every_caller() -> None:
    assert {row.caller for row in TABLE} == CALLERS.keys()
    assert {caller.kind for caller in CALLERS.values()} == set(CallerKind)


# -- callers ---------------------------------------------------------------------------------------------------


def test_who_may_ask_for_reports() -> None:
    askers = {name for name, caller in CALLERS.items() if caller.may_ask}
    assert askers == {"front proxy", "report only"}


def test_verdict_without_dates_always_counts() -> None:
    caller = Caller(CallerKind.NO_CERTIFICATE)
    assert (caller.not_before, caller.not_after) == (-inf, inf)


def test_every_refusal_has_a_message() -> None:
    assert not Refusal.NONE
    assert Refusal.NONE.message == ""
    messages = [refusal.message for refusal in Refusal if refusal]
    assert all(messages)
    assert len(set(messages)) == len(messages)


# -- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (b"x-remote-user", IdentityField.USER),
        (b"x-remote-group", IdentityField.GROUP),
        (b"x-remote-uid", IdentityField.UID),
        (b"x-remote-extra-", IdentityField.EXTRA),
        (b"x-remote-extra-scopes", IdentityField.EXTRA),
        (b"x_remote_user", None),
        (b"x-remote-users", None),
        (b"x-remote-extr", None),
        (b"impersonate-user", None),
        (b"authorization", None),
        (b"", None),
    ],
)
def test_kind_of_standard_names(name: bytes, kind: IdentityField | None) -> None:
    assert RULES.kind_of(name) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (b"x-user", IdentityField.USER),
        (b"x-group", IdentityField.GROUP),
        (b"x-uid", IdentityField.UID),
        (b"x-extra-a", IdentityField.EXTRA),
        (b"x-remote-user", IdentityField.STRIP),
        (b"x-remote-group", IdentityField.STRIP),
        (b"x-remote-uid", IdentityField.STRIP),
        (b"x-remote-extra-a", IdentityField.STRIP),
    ],
)
def test_standard_names_are_stripped_where_others_are_configured(name: bytes, kind: IdentityField) -> None:
    rules = IdentityRules(["X-User"], ["X-Group"], ["X-Uid"], ["X-Extra-"])
    assert rules.kind_of(name) is kind


def test_uid_is_stripped_where_none_is_configured() -> None:
    found = ask(FRONT_PROXY, b"X-Remote-User: jane", b"X-Remote-Uid: 7", rules=WITHOUT_UID)
    assert found == Assertion(ASSERTED, [b"X-Remote-User: jane"], stripped=1)


def test_nothing_is_extra_where_no_prefix_is_configured() -> None:
    rules = IdentityRules(["X-Remote-User"], ["X-Remote-Group"])
    assert rules.kind_of(b"x-remote-extra-a") is IdentityField.STRIP
    assert rules.kind_of(b"x-other") is None


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (([], ["G"], [], []), "usernameHeaders"),
        ((["U"], [], [], []), "groupHeaders"),
        ((["U", "not a name"], ["G"], [], []), "not a header name"),
        ((["U"], ["G"], [], [""]), "not a header name"),
        ((["U"], ["u"], [], []), "more than one"),
        ((["U"], ["G"], ["g"], []), "more than one"),
        ((["Connection"], ["G"], [], []), "another meaning"),
        ((["Authorization"], ["G"], [], []), "another meaning"),
        ((["X-Remote-User"], ["G"], [], ["X-Remote-"]), "also matches 'x-remote-user'"),
        ((["U"], ["G"], [], ["X-Remote-"]), "also matches 'x-remote-"),
        ((["U"], ["G"], [], ["U"]), "also matches 'u'"),
        ((["U"], ["G"], [], ["X-E-", "X-E-More-"]), "also matches 'x-e-more-'"),
        ((["U"], ["G"], [], ["Auth"]), "also matches 'authorization'"),
    ],
)
def test_ambiguous_names_are_refused(lists: tuple[list[str], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IdentityRules(*lists)


# -- what a front proxy says -----------------------------------------------------------------------------------


def said(*lines: bytes, rules: IdentityRules = RULES) -> list[bytes]:
    found = ask(FRONT_PROXY, *lines, rules=rules)
    assert found.pool is ASSERTED
    assert not found.refusal
    return list(found.lines)


def test_names_are_rewritten_in_any_case_and_values_kept() -> None:
    assert said(
        b"x-reMOTE-user:  Jane Doe \t",
        b"X-REMOTE-GROUP:a, b",
        b"x-remote-group:\xc3\xa9",
        b"x-remote-extra-Acme.COM%2fX: 1",
        b"x-remote-uid: 7",
    ) == [
        b"X-Remote-User: Jane Doe",
        b"X-Remote-Group: a, b",
        b"X-Remote-Group: \xc3\xa9",
        b"X-Remote-Uid: 7",
        b"X-Remote-Extra-Acme.COM%2fX: 1",
    ]


def test_groups_keep_count_and_order_and_empty_ones_are_left_out() -> None:
    lines = [b"X-Remote-Group: %d" % (number % 7) for number in range(300)]
    assert said(b"X-Remote-User: u", *lines[:150], b"X-Remote-Group:", b"X-Remote-Group: ", *lines[150:]) == [
        b"X-Remote-User: u",
        *lines,
    ]


def test_extras_keep_count_order_and_empty_values() -> None:
    lines = [b"X-Remote-Extra-a: 1", b"X-Remote-Extra-b: 2", b"X-Remote-Extra-A: ", b"X-Remote-Extra-: 3"]
    assert said(b"X-Remote-User: u", *lines) == [b"X-Remote-User: u", *lines]


def test_user_and_uid_are_the_first_line_of_a_name() -> None:
    assert said(b"X-Remote-User: jane", b"X-Remote-User: admin", b"X-Remote-Uid: 1", b"X-Remote-Uid: 0") == [
        b"X-Remote-User: jane",
        b"X-Remote-Uid: 1",
    ]


def test_an_empty_first_line_hides_the_second_of_the_same_name() -> None:
    # Go: Header.Get returns the first line, and an empty one is no user.
    assert ask(FRONT_PROXY, b"X-Remote-User:", b"X-Remote-User: jane").pool is PLAIN
    assert said(b"X-Remote-User: jane", b"X-Remote-Uid:", b"X-Remote-Uid: 7") == [b"X-Remote-User: jane"]


def test_lists_of_names_are_read_in_their_order_and_written_under_the_first() -> None:
    assert said(
        b"X-Remote-Uid: 2",
        b"X-Remote-Group: c",
        b"X-Remote-User: second",
        b"X-Remote-Extra-K: 2",
        b"X-Extra-K: 1",
        b"X-User: first",
        b"X-Group: a",
        b"X-Uid: 1",
        b"X-Remote-Group: d",
        b"X-Group: b",
        rules=CUSTOM,
    ) == [
        b"X-User: first",
        b"X-Group: a",
        b"X-Group: b",
        b"X-Group: c",
        b"X-Group: d",
        b"X-Uid: 1",
        b"X-Extra-K: 1",
        b"X-Extra-K: 2",
    ]


def test_an_empty_name_gives_way_to_the_next_of_the_list() -> None:
    assert said(
        b"X-User:", b"X-User: hidden", b"X-Remote-User: second", b"X-Uid:", b"X-Remote-Uid: 2", rules=CUSTOM
    ) == [b"X-User: second", b"X-Uid: 2"]


def test_anonymous_is_refused_only_where_it_is_the_user() -> None:
    assert ask(FRONT_PROXY, b"X-User: system:anonymous", rules=CUSTOM).refusal is Refusal.ANONYMOUS
    assert said(b"X-User: jane", b"X-Remote-User: system:anonymous", rules=CUSTOM) == [b"X-User: jane"]
    assert said(b"X-Remote-User: jane", b"X-Remote-Group: system:anonymous")[1:] == [
        b"X-Remote-Group: system:anonymous"
    ]


def test_a_long_line_and_more_lines_than_are_kept_read_the_same() -> None:
    long = b"X-Remote-Group: " + b"g" * 5000
    assert said(b"X-Remote-User: u", long, long) == [b"X-Remote-User: u", long, long]
    for number in range(5000):
        line = b"X-Remote-User: user-%d" % number
        assert RULES.field(line).line == line


# -- what a certificate says -----------------------------------------------------------------------------------


def test_a_certificate_in_headers() -> None:
    subject = Subject("jane", ("dev", "ops, eu", "dev", "é"), ("1f",))
    assert RULES.speak_for(subject, "X509SHA256=00ff") == (
        (
            b"X-Remote-User: jane",
            b"X-Remote-Group: dev",
            b"X-Remote-Group: ops, eu",
            b"X-Remote-Group: dev",
            "X-Remote-Group: é".encode(),
            b"X-Remote-Uid: 1f",
            b"X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id: X509SHA256=00ff",
        ),
        Refusal.NONE,
    )


def test_a_certificate_under_configured_names() -> None:
    lines, _ = CUSTOM.speak_for(Subject("jane", ("dev",), ("7",)), "id")
    assert [line.partition(b":")[0] for line in lines] == [
        b"X-User",
        b"X-Group",
        b"X-Uid",
        b"X-Extra-authentication.kubernetes.io%2Fcredential-id",
    ]


def test_uid_and_credential_id_are_left_out_where_the_server_takes_none() -> None:
    subject = Subject("jane", (), ("7",))
    assert WITHOUT_UID.speak_for(subject, "id")[0][1:] == (
        b"X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id: id",
    )
    assert IdentityRules(["U"], ["G"]).speak_for(subject, "id") == ((b"U: jane",), Refusal.NONE)


@pytest.mark.parametrize(
    ("subject", "refusal"),
    [
        (Subject(""), Refusal.NO_NAME),
        (Subject("", ("dev",)), Refusal.NO_NAME),
        (Subject("system:anonymous"), Refusal.ANONYMOUS),
        (Subject("jane", ("dev", "")), Refusal.EMPTY_GROUP),
        (Subject("jane", (), ("1", "2")), Refusal.SEVERAL_UIDS),
        (Subject("jane", (), ("",)), Refusal.EMPTY_UID),
        *(
            (subject, Refusal.CONTROL_CHARACTER)
            for bad in ("\r\nX-Remote-Group: system:masters", "\n", "\r", "\0", "\t", "\x1f", "\x7f")
            for subject in (
                Subject(f"jane{bad}"),
                Subject(f"{bad}jane"),
                Subject("jane", (f"dev{bad}",)),
                Subject("jane", (), (f"1{bad}",)),
            )
        ),
        *(
            (subject, Refusal.OUTER_BLANK)
            for value in (" x", "x ", " ")
            for subject in (Subject(value), Subject("jane", (value,)), Subject("jane", (), (value,)))
        ),
    ],
)
@pytest.mark.parametrize("rules", [RULES, WITHOUT_UID], ids=["all", "without uid"])
def test_subjects_that_headers_cannot_say(rules: IdentityRules, subject: Subject, refusal: Refusal) -> None:
    assert rules.speak_for(subject, "id") == ((), refusal)


@pytest.mark.parametrize("name", ["a b", "a,b", "system:node:n1", "ümläut", "System:Anonymous", "x\u00a0"])
def test_subjects_that_headers_can_say(name: str) -> None:
    lines, refusal = RULES.speak_for(Subject(name), "id")
    assert not refusal
    assert lines[0] == b"X-Remote-User: " + name.encode()


@pytest.mark.parametrize(
    ("key", "escaped"),
    [
        ("authentication.kubernetes.io/credential-id", b"authentication.kubernetes.io%2Fcredential-id"),
        ("100%", b"100%25"),
        ("é k", b"%C3%A9%20k"),
        ("!#$&'*+-.^_`|~09azAZ", b"!#$&'*+-.^_`|~09azAZ"),
        ("a:b\r\n", b"a%3Ab%0D%0A"),
    ],
)
def test_escape_extra_key(key: str, escaped: bytes) -> None:
    assert escape_extra_key(key) == escaped


# -- tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [b"Authorization: Bearer abc"],
        [b"authorization:bEARER abc"],
        [b"Authorization: \t Bearer abc \t"],
        [b"Authorization: Bearer abc def"],
        [b"Authorization: Bearer a", b"Authorization: Basic b"],
        WEBSOCKET,
        [b"connection: keep-alive, UPGRADE", b"upgrade: WebSocket", *WEBSOCKET[2:]],
        [*WEBSOCKET[:2], b"Sec-WebSocket-Protocol: v5", b"sec-websocket-protocol:\t" + PROTOCOL],
        [BASIC, *WEBSOCKET],
    ],
)
def test_bears_token(lines: list[bytes]) -> None:
    assert bears_token(lines)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [BASIC],
        [b"Authorization:"],
        [b"Authorization: Bearer"],
        [b"Authorization: Bearer "],
        [b"Authorization: Bearer  abc"],
        [b"Authorization: Bearer\tabc"],
        [b"Authorization: Bearerabc"],
        [b"Authorization: xBearer abc"],
        [b"Authorization: Basic b", b"Authorization: Bearer a"],
        [b"Authorization:", b"Authorization: Bearer a"],
        [b"X-Authorization: Bearer abc"],
        [b"Proxy-Authorization: Bearer abc"],
        WEBSOCKET[1:],
        [WEBSOCKET[0], WEBSOCKET[2]],
        WEBSOCKET[:2],
        [WEBSOCKET[0], b"Upgrade: SPDY/3.1", WEBSOCKET[2]],
        [WEBSOCKET[0], b"Upgrade: SPDY/3.1", b"Upgrade: websocket", WEBSOCKET[2]],
        [*WEBSOCKET[:2], b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io."],
        [*WEBSOCKET[:2], b"Sec-WebSocket-Protocol: Base64url.bearer.authorization.k8s.io.YWJj"],
    ],
)
def test_bears_no_token(lines: list[bytes]) -> None:
    assert not bears_token(lines)
