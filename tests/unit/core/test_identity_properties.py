"""What holds of the identity rules for any request."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orca_sidecar.core.identity import (
    Caller,
    CallerKind,
    IdentityField,
    IdentityRules,
    Pool,
    Refusal,
    Subject,
)
from tests.unit.core.identity_callers import CALLERS, CUSTOM, FRONT_PROXY, RULES, WITHOUT_UID, ask

always = settings(derandomize=True, deadline=None, max_examples=500)

_CASES = st.lists(st.booleans(), min_size=1, max_size=8)


def _in_case(name: bytes, upper: list[bool]) -> bytes:
    return bytes(
        ord(chr(byte).upper() if upper[i % len(upper)] else chr(byte).lower()) for i, byte in enumerate(name)
    )


_NAMES = st.sampled_from(
    [
        b"x-remote-user",
        b"x-remote-group",
        b"x-remote-uid",
        b"x-remote-extra-",
        b"x-remote-extra-scopes",
        b"x-user",
        b"x-group",
        b"x-uid",
        b"x-extra-k",
        b"x_remote_user",
        b"impersonate-user",
        b"authorization",
        b"connection",
        b"upgrade",
        b"sec-websocket-protocol",
        b"accept",
    ]
)
_VALUES = st.one_of(
    st.sampled_from(
        [
            b"",
            b" ",
            b"admin",
            b"system:anonymous",
            b"system:masters",
            b"Bearer abc",
            b"upgrade, X-Remote-User",
            b"websocket",
            b"base64url.bearer.authorization.k8s.io.YWJj",
        ]
    ),
    st.text(
        st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20
    ).map(lambda text: text.encode("latin-1")),
)
_LINES = st.lists(
    st.builds(lambda name, case, value: _in_case(name, case) + b":" + value, _NAMES, _CASES, _VALUES),
    max_size=12,
)
_CONFIGURATIONS = st.sampled_from(
    [RULES, CUSTOM, WITHOUT_UID, IdentityRules(["X-User"], ["X-Group"], [], ["X-Extra-"])]
)
_TEXT = st.text(max_size=12)
_SUBJECTS = st.builds(
    Subject, _TEXT, st.lists(_TEXT, max_size=3).map(tuple), st.lists(_TEXT, max_size=2).map(tuple)
)


@always
@given(_CONFIGURATIONS, _SUBJECTS, _LINES)
def test_only_the_certificate_speaks_for_who_is_no_front_proxy(
    rules: IdentityRules, subject: Subject, lines: list[bytes]
) -> None:
    """For any headers: a caller that is no front proxy never reaches the front-proxy pool with anything that is not in
    its verified certificate.
    """
    own, refusal = rules.speak_for(subject, "X509SHA256=00")
    for kind in CallerKind:
        if kind is CallerKind.FRONT_PROXY:
            continue
        vouched = kind is CallerKind.CERTIFICATE
        caller = Caller(
            kind, subject.common_name, own if vouched else (), refusal if vouched else Refusal.NONE
        )
        found = ask(caller, *lines, rules=rules)
        if found.pool is Pool.FRONT_PROXY:
            assert vouched
            assert not found.refusal
            assert found.lines == own
            assert own[0].partition(b": ")[2].decode() == subject.common_name
        else:
            assert found.lines == ()


@always
@given(_CONFIGURATIONS, _LINES)
def test_a_front_proxy_asserts_one_user_and_only_what_it_sent(
    rules: IdentityRules, lines: list[bytes]
) -> None:
    found = ask(FRONT_PROXY, *lines, rules=rules)
    if found.pool is Pool.PLAIN:
        assert found.lines == ()
        return
    kinds = [rules.kind_of(line.partition(b":")[0].lower()) for line in found.lines]
    assert kinds[0] is IdentityField.USER
    assert kinds.count(IdentityField.USER) == 1
    assert kinds.count(IdentityField.UID) <= 1
    assert IdentityField.STRIP not in kinds
    assert None not in kinds
    values = [line.partition(b":")[2].strip(b" \t") for line in found.lines]
    assert values[0] not in (b"", b"system:anonymous")
    assert set(values) <= {line.partition(b":")[2].strip(b" \t") for line in lines}


@always
@given(_CONFIGURATIONS, _SUBJECTS)
def test_what_a_certificate_says_is_one_line_each_and_reads_back_as_the_subject(
    rules: IdentityRules, subject: Subject
) -> None:
    lines, refusal = rules.speak_for(subject, "X509SHA256=00")
    assert bool(lines) is not bool(refusal)
    if refusal:
        return
    fields = [rules.field(line) for line in lines]
    texts = [(field.kind, field.value.decode()) for field in fields]
    assert not any(byte in line for line in lines for byte in b"\r\n\0")
    assert [value for kind, value in texts if kind is IdentityField.USER] == [subject.common_name]
    assert [value for kind, value in texts if kind is IdentityField.GROUP] == list(subject.organizations)
    assert [value for kind, value in texts if kind is IdentityField.UID] in ([], list(subject.uids))


@always
@given(_LINES)
def test_no_caller_reaches_the_plain_pool_with_identity_lines(lines: list[bytes]) -> None:
    for caller in CALLERS.values():
        found = ask(caller, *lines)
        assert found.pool is Pool.FRONT_PROXY or found.lines == ()
        assert not (found.refusal and found.lines)
