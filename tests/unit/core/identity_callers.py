"""Configurations and callers for the tests of the identity rules."""

from __future__ import annotations

from orca_sidecar.core.identity import Assertion, Caller, CallerKind, IdentityRules, Refusal

RULES = IdentityRules(["X-Remote-User"], ["X-Remote-Group"], ["X-Remote-Uid"], ["X-Remote-Extra-"])
CUSTOM = IdentityRules(
    ["X-User", "X-Remote-User"],
    ["X-Group", "X-Remote-Group"],
    ["X-Uid", "X-Remote-Uid"],
    ["X-Extra-", "X-Remote-Extra-"],
)
WITHOUT_UID = IdentityRules(["X-Remote-User"], ["X-Remote-Group"], [], ["X-Remote-Extra-"])

JANE = (b"X-Remote-User: jane", b"X-Remote-Group: dev")
CERTIFICATE = Caller(CallerKind.CERTIFICATE, "jane", JANE)
UNSAYABLE = Caller(CallerKind.CERTIFICATE, "", refusal=Refusal.NO_NAME)
FRONT_PROXY = Caller(CallerKind.FRONT_PROXY, "balancer")
CALLERS = {
    "no certificate": Caller(CallerKind.NO_CERTIFICATE),
    "front proxy": FRONT_PROXY,
    "report only": Caller(CallerKind.REPORT_ONLY, "reporter"),
    "certificate": CERTIFICATE,
    "unsayable certificate": UNSAYABLE,
    "unlisted": Caller(CallerKind.UNLISTED, "other"),
    "unverified": Caller(CallerKind.UNVERIFIED),
}


def ask(caller: Caller, *lines: bytes, rules: IdentityRules = RULES) -> Assertion:
    """What becomes of a request of these field lines, as the data plane asks."""
    identity = [line for line in lines if rules.kind_of(line.partition(b":")[0].lower()) is not None]
    return rules.assert_identity(caller, [rules.field(line) for line in identity], lines)
