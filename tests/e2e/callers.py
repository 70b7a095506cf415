"""Callers of every kind, and kube-apiserver's own word on who each of them is (SelfSubjectReview)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.e2e.control_plane import Authorities
from tests.e2e.wire import Answer, Connection, Route
from tests.pki import ANY, NO_EKU, SERVER, UID_OID, Credential

REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW_BODY = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
Header = tuple[str, str]
USER, GROUP = "X-Remote-User", "X-Remote-Group"

UNAUTHORIZED = 401
ANONYMOUS = {"username": "system:anonymous", "groups": ["system:unauthenticated"]}
"""What `identity` makes of a refusal, and of a caller without credentials."""


def ask(connection: Connection, headers: Iterable[Header] = (), token: str = "") -> Answer:
    return connection.request("POST", REVIEW, headers, REVIEW_BODY, token=token)


def identity(answer: Answer) -> Any:
    """The user that kube-apiserver saw: name, uid, groups and extra; 401; or another refusal and its message."""
    body = answer.json()
    if answer.status == 401:  # the sidecar's own says more than kube-apiserver's "Unauthorized"
        assert (body["kind"], body["reason"]) == ("Status", "Unauthorized")
        return 401
    if answer.status != 201:
        return answer.status, body["message"]
    user = body["status"]["userInfo"]
    return {key: value for key, value in user.items() if value}


def who(
    route: Route, credential: Credential | None = None, headers: Iterable[Header] = (), token: str = ""
) -> Any:
    """Who a request over a connection of its own is."""
    with route.connect(credential) as connection:
        return identity(ask(connection, headers, token))


def _name(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    with warnings.catch_warnings():  # on purpose: real authorities sign empty attributes too
        warnings.simplefilter("ignore", UserWarning)
        return x509.Name([x509.NameAttribute(oid, value, _validate=False) for oid, value in attributes])


CN, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME

USERS: dict[str, dict[str, Any]] = {
    "no group": {"cn": "jane"},
    "several O": {"cn": "jane", "o": ["developers", "qa"]},
    "duplicate O": {"cn": "jane", "o": ["b", "a", "b"]},
    "comma in O": {"cn": "jane", "o": ["a,b", "c, d"]},
    "UTF-8": {"cn": "Jürgen ☃", "o": ["grün", "日本"]},
    "several CN": {"cn": ["first", "last"], "o": ["developers"]},
    "UID": {"cn": "jane", "o": ["developers"], "uid": "uid-1"},
    "node": {"cn": "system:node:node-0", "o": ["system:nodes"]},
    "percent and quotes": {"cn": 'a%2Fb "c" \\d;=', "o": ["x%20y", ":"]},
    "inner blanks": {"cn": "a  b", "o": ["c   d"]},
    "300 groups": {"cn": "jane", "o": [f"group-{n:03}" for n in range(300)]},
    "system:masters": {"cn": "root", "o": ["system:masters"]},
    "any EKU": {"cn": "jane", "eku": ANY},
    "no EKU": {"cn": "jane", "eku": NO_EKU},
    "X.509 v1": {"cn": "jane", "o": ["developers"], "version": x509.Version.v1},
    "RSA": {"cn": "jane", "key": "rsa"},
    "Ed25519": {"cn": "jane", "key": "ed25519"},
    "RDNs in another order": {"subject": _name((CN, "jane"), (ORG, "b"), (ORG, "a"))},
}
"""Client certificates that make a user whom headers can name."""

NO_USER: dict[str, dict[str, Any]] = {
    "serverAuth only": {"cn": "jane", "eku": SERVER},
    "expired": {"cn": "jane", "not_before": -timedelta(days=2), "not_after": -timedelta(days=1)},
    "not yet valid": {"cn": "jane", "not_before": timedelta(hours=1)},
}
"""Certificates of the client CA that are nobody: 401, and with a good token the token's user."""

UNSAYABLE: dict[str, dict[str, Any]] = {
    "leading blank in CN": {"cn": " jane"},
    "trailing blank in O": {"cn": "jane", "o": ["developers "]},
    "line feed in CN": {"cn": "jane\nX-Remote-Group: system:masters"},
    "control character in O": {"cn": "jane", "o": ["a\x01b"]},
    "empty O": {"subject": _name((ORG, ""), (CN, "jane"))},
    "system:anonymous": {"cn": "system:anonymous"},
}
"""Users for kube-apiserver, but not to be said in headers: the sidecar answers 401."""

NAMELESS: dict[str, dict[str, Any]] = {
    "no CN": {"o": ["developers"]},
    "empty CN": {"subject": _name((ORG, "developers"), (CN, ""))},
    "several UIDs": {"cn": "jane", "uid": ["uid-1", "uid-2"]},
    "empty UID": {"subject": _name((CN, "jane"), (UID_OID, ""))},
}
"""Certificates of the client CA that kube-apiserver itself makes no user of."""


class Callers:
    """The credentials of the groups above, made on first use."""

    def __init__(self, authorities: Authorities) -> None:
        self.authorities = authorities
        self._made: dict[str, Credential] = {}

    def of(self, group: dict[str, dict[str, Any]], name: str) -> Credential:
        key = f"caller-{name}"
        if key not in self._made:
            arguments = {**group[name], "name": key}
            self._made[key] = self.authorities.pki.leaf(self.authorities.ca, **arguments)
        return self._made[key]

    @property
    def jane(self) -> Credential:
        return self.of(USERS, "several O")

    def stranger(self) -> Credential:
        """Signed by an authority that nobody knows."""
        return self._leaf("stranger", self.authorities.stranger_ca, cn="jane", o=["system:masters"])

    def namesake(self, cn: str) -> Credential:
        """A front proxy's name, signed by the client CA."""
        return self._leaf(f"namesake-{cn}", self.authorities.ca, cn=cn)

    def unlisted(self) -> Credential:
        """Of the front-proxy CA, with a name that is in no list."""
        return self._leaf("unlisted", self.authorities.front_proxy_ca, cn="unlisted")

    def by_intermediate(self) -> Credential:
        """Signed by an intermediate of the client CA, which comes with it."""
        intermediate = self.authorities.pki.ca("intermediate", issuer=self.authorities.ca)
        return self._leaf("by-intermediate", intermediate, cn="jane", o=["developers"])

    def expiring(self, seconds: int) -> Credential:
        end = datetime.now(UTC) - self.authorities.pki.now + timedelta(seconds=seconds)
        return self.authorities.pki.leaf(self.authorities.ca, name="expiring", cn="jane", not_after=end)

    def _leaf(self, name: str, ca: Any, **arguments: Any) -> Credential:
        if name not in self._made:
            self._made[name] = self.authorities.pki.leaf(ca, name=f"caller-{name}", **arguments)
        return self._made[name]
