"""Whom a certificate makes of a caller, and for how long that counts."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509

from orca_sidecar.core.identity import Caller, CallerKind, Refusal
from orca_sidecar.trust import store as store_module
from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.store import REFUSAL_LIFETIME, Bundles, TrustStore
from orca_sidecar.trust.verify import Authorities
from tests.pki import HOUR, SERVER, Authority, Credential, Pki, elements, encode, resigned
from tests.unit.trust.clusters import RULES, Cluster, make_cluster

MINUTE = timedelta(minutes=1)


class Clock:
    def __init__(self, pki: Pki) -> None:
        self.now = pki.now.timestamp()

    def __call__(self) -> float:
        return self.now


def bundles(client: Authority | None, front_proxy: Authority | None) -> Bundles:
    def one(ca: Authority | None) -> Authorities | None:
        return Authorities([ca.certificate]) if ca else None

    return Bundles(one(client), one(front_proxy))


@pytest.fixture
def clock(cluster: Cluster) -> Clock:
    return Clock(cluster.pki)


@pytest.fixture
def trust(cluster: Cluster, clock: Clock) -> TrustStore:
    return TrustStore(
        bundles(cluster.ca, cluster.front_proxy_ca), RULES, ["balancer", "both"], ["reporter", "both"], clock
    )


def judge(trust: TrustStore, leaf: Credential, *, resumed: bool = False) -> Caller:
    return trust.judge(leaf.der, () if resumed else leaf.chain_der)


# -- kinds -----------------------------------------------------------------------------------------------------


def test_no_certificate(trust: TrustStore, clock: Clock) -> None:
    caller = trust.judge(None)
    assert caller.kind is CallerKind.NO_CERTIFICATE
    assert trust.still_valid(caller, clock.now)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("balancer", CallerKind.FRONT_PROXY),
        ("both", CallerKind.FRONT_PROXY),
        ("reporter", CallerKind.REPORT_ONLY),
        ("other", CallerKind.UNLISTED),
        ("Balancer", CallerKind.UNLISTED),
        ("", CallerKind.UNLISTED),
        (["other", "balancer"], CallerKind.FRONT_PROXY),
        (["balancer", "other"], CallerKind.UNLISTED),
    ],
)
def test_certificates_of_the_front_proxy_authority(
    cluster: Cluster, trust: TrustStore, names: str | list[str], kind: CallerKind
) -> None:
    caller = judge(
        trust, cluster.pki.leaf(cluster.front_proxy_ca, cn=names, o=["system:masters"], name="leaf")
    )
    assert caller.kind is kind
    assert caller.lines == ()


@pytest.mark.parametrize("name", ["jane", "balancer", "reporter", "front-proxy-client"])
def test_case_5_certificates_of_the_client_authority_are_users_whatever_their_name(
    cluster: Cluster, trust: TrustStore, name: str
) -> None:
    leaf = cluster.pki.leaf(cluster.ca, cn=name, o=["dev", "ops"], uid="7")
    caller = judge(trust, leaf)
    assert caller.kind is CallerKind.CERTIFICATE
    assert not caller.may_ask
    assert caller.common_name == name
    assert caller.lines == (
        b"X-Remote-User: " + name.encode(),
        b"X-Remote-Group: dev",
        b"X-Remote-Group: ops",
        b"X-Remote-Uid: 7",
        b"X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id: X509SHA256="
        + sha256(leaf.der).hexdigest().encode(),
    )


def test_a_certificate_that_headers_cannot_say(cluster: Cluster, trust: TrustStore) -> None:
    caller = judge(trust, cluster.pki.leaf(cluster.ca, o=["dev"]))
    assert (caller.kind, caller.refusal, caller.lines) == (CallerKind.CERTIFICATE, Refusal.NO_NAME, ())


def test_certificates_that_nobody_vouches_for(cluster: Cluster, trust: TrustStore, clock: Clock) -> None:
    pki = cluster.pki
    stranger = pki.ca("stranger", cn="ca")
    for leaf in (
        pki.leaf(stranger, cn="jane"),
        pki.leaf(cluster.ca, cn="jane", eku=SERVER),
        pki.leaf(cluster.ca, cn="jane", not_before=-2 * HOUR, not_after=-MINUTE),
        pki.leaf(cluster.front_proxy_ca, cn="balancer", eku=SERVER),
        pki.leaf(cluster.front_proxy_ca, cn="balancer", not_before=MINUTE),
        pki.leaf(pki.ca("stranger", cn="front-proxy-ca"), cn="balancer"),
    ):
        caller = judge(trust, leaf)
        assert caller.kind is CallerKind.UNVERIFIED
        assert caller.detail
        assert caller.lines == ()
        assert not caller.may_ask
        assert trust.still_valid(caller, clock.now + REFUSAL_LIFETIME)
        assert not trust.still_valid(caller, clock.now + REFUSAL_LIFETIME + 1)


@pytest.mark.parametrize("der", [b"", b"hello", b"0\x80", b"0\x03\x02\x01\x01"])
def test_what_is_no_certificate(trust: TrustStore, cluster: Cluster, der: bytes) -> None:
    assert trust.judge(der).kind is CallerKind.UNVERIFIED
    caller = trust.judge(cluster.pki.leaf(cluster.ca, cn="jane").der, [der])
    assert caller.kind is CallerKind.CERTIFICATE


def _with_its_extensions_twice(leaf: Credential, signer: Authority) -> bytes:
    *fields, extensions = elements(leaf.certificate.tbs_certificate_bytes)
    (sequence,) = elements(extensions)
    twice = encode(0xA3, encode(0x30, b"".join(elements(sequence) * 2)))
    return resigned(leaf.certificate, encode(0x30, b"".join((*fields, twice))), signer.private_key)


def _of_version(number: int, leaf: Credential, signer: Authority) -> bytes:
    _, *fields = elements(leaf.certificate.tbs_certificate_bytes)
    version = encode(0xA0, encode(0x02, bytes([number - 1])))
    return resigned(leaf.certificate, encode(0x30, b"".join((version, *fields))), signer.private_key)


def test_what_parsers_refuse_with_errors_of_their_own(trust: TrustStore, cluster: Cluster) -> None:
    """`InvalidVersion` and `DuplicateExtension` are no ValueErrors; the latter shows only where a chain is built by hand,
    as over a stranger's authority with an Ed25519 key that comes along.
    """
    stranger = cluster.pki.ca("stranger", key="ed25519")
    leaf = cluster.pki.leaf(stranger, cn="jane")
    twice = _with_its_extensions_twice(leaf, stranger)
    second_version = _of_version(2, cluster.pki.leaf(cluster.ca, cn="jane"), cluster.ca)
    for der, chain in ((twice, [stranger.der]), (second_version, [])):
        assert trust.judge(der, chain).kind is CallerKind.UNVERIFIED
    # Beside a good one they are passed over.
    for der in (twice, second_version):
        jane = cluster.pki.leaf(cluster.ca, cn="jane")
        assert trust.judge(jane.der, [der, stranger.der]).kind is CallerKind.CERTIFICATE


def test_a_certificate_with_one_byte_changed(trust: TrustStore, cluster: Cluster) -> None:
    """Nobody's, unless what was signed is still all there (a bit string's count of unused bits says nothing here)."""
    for ca, cn in ((cluster.ca, "jane"), (cluster.front_proxy_ca, "balancer")):
        leaf = cluster.pki.leaf(ca, cn=cn)
        for at, byte in enumerate(leaf.der):
            for changed in {0, 0xFF, byte ^ 1, (byte + 1) % 256} - {byte}:
                der = leaf.der[:at] + bytes([changed]) + leaf.der[at + 1 :]
                caller = trust.judge(der)
                if caller.kind is not CallerKind.UNVERIFIED:
                    signed = x509.load_der_x509_certificate(der).tbs_certificate_bytes
                    assert signed == leaf.certificate.tbs_certificate_bytes
                    assert caller.common_name == cn


def test_authorities_that_share_a_subject_are_told_apart_by_signature(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, front_proxy_cn="ca", key_identifiers=False)
    trust = cluster.trust()
    for version in (x509.Version.v1, x509.Version.v3):
        for ca, kind in (
            (cluster.ca, CallerKind.CERTIFICATE),
            (cluster.front_proxy_ca, CallerKind.FRONT_PROXY),
        ):
            leaf = cluster.pki.leaf(ca, cn="balancer", version=version)
            assert judge(trust, leaf).kind is kind


def test_a_certificate_that_both_authorities_vouch_for_is_a_front_proxys_first(
    cluster: Cluster, clock: Clock
) -> None:
    """An intermediate that both roots signed: kube-apiserver asks the front-proxy authorities first."""
    pki, rival = cluster.pki, cluster.pki.ca("rival")
    under_client = pki.ca("middle", issuer=cluster.ca)
    under_proxy = pki.ca("middle", issuer=rival, private_key=under_client.private_key)
    trust = TrustStore(bundles(under_client, under_proxy), RULES, ["balancer"], ["reporter"], clock)
    for name, kind in [
        ("balancer", CallerKind.FRONT_PROXY),
        ("reporter", CallerKind.REPORT_ONLY),
        ("jane", CallerKind.CERTIFICATE),
    ]:
        assert judge(trust, pki.leaf(under_client, cn=name)).kind is kind


@pytest.mark.parametrize("kind", [CallerKind.CERTIFICATE, CallerKind.FRONT_PROXY])
def test_an_absent_bundle_vouches_for_nobody(cluster: Cluster, clock: Clock, kind: CallerKind) -> None:
    user = cluster.pki.leaf(cluster.ca, cn="balancer")
    balancer = cluster.pki.leaf(cluster.front_proxy_ca, cn="balancer")
    for present, absent, trust in (
        (balancer, user, TrustStore(bundles(None, cluster.front_proxy_ca), RULES, ["balancer"], [], clock)),
        (user, balancer, TrustStore(bundles(cluster.ca, None), RULES, ["balancer"], [], clock)),
    ):
        assert judge(trust, present).kind is not CallerKind.UNVERIFIED
        assert judge(trust, absent).kind is CallerKind.UNVERIFIED
    assert judge(TrustStore(bundles(None, None), RULES), user).kind is CallerKind.UNVERIFIED


# -- how long it counts ----------------------------------------------------------------------------------------


def test_a_certificate_that_expires_stops_counting(cluster: Cluster, trust: TrustStore, clock: Clock) -> None:
    leaf = cluster.pki.leaf(cluster.ca, cn="jane", not_after=MINUTE)
    caller = judge(trust, leaf)
    assert caller.not_before == clock.now - 3600
    for seconds, expected in [(-3601, False), (-3600, True), (60, True), (61, False)]:
        assert trust.still_valid(caller, clock.now + seconds) is expected
    clock.now += 61
    assert judge(trust, leaf).kind is CallerKind.UNVERIFIED


def test_a_certificate_that_is_not_valid_yet_starts_counting(
    cluster: Cluster, trust: TrustStore, clock: Clock
) -> None:
    leaf = cluster.pki.leaf(cluster.ca, cn="jane", not_before=MINUTE)
    caller = judge(trust, leaf)
    assert caller.kind is CallerKind.UNVERIFIED
    clock.now += 61
    assert not trust.still_valid(caller, clock.now)
    assert judge(trust, leaf).kind is CallerKind.CERTIFICATE


def test_a_verdict_counts_while_the_whole_chain_is_valid(
    cluster: Cluster, trust: TrustStore, clock: Clock
) -> None:
    middle = cluster.pki.ca("middle", issuer=cluster.ca, not_after=MINUTE)
    leaf = cluster.pki.leaf(middle, cn="jane")
    assert judge(trust, leaf).not_after == clock.now + 60
    clock.now += 61
    assert judge(trust, leaf).kind is CallerKind.UNVERIFIED


def test_a_removed_authority_stops_counting_and_an_added_one_starts(
    cluster: Cluster, trust: TrustStore, clock: Clock
) -> None:
    leaf = cluster.pki.leaf(cluster.ca, cn="jane")
    new_ca = cluster.pki.ca("new", cn="ca")
    new_leaf = cluster.pki.leaf(new_ca, cn="john")
    nobody, known, unknown = trust.judge(None), judge(trust, leaf), judge(trust, new_leaf)
    assert [caller.kind for caller in (known, unknown)] == [CallerKind.CERTIFICATE, CallerKind.UNVERIFIED]
    trust.replace(bundles(new_ca, cluster.front_proxy_ca))
    assert not any(trust.still_valid(caller, clock.now) for caller in (nobody, known, unknown))
    assert judge(trust, leaf).kind is CallerKind.UNVERIFIED
    assert judge(trust, new_leaf).kind is CallerKind.CERTIFICATE
    assert all(trust.still_valid(caller, clock.now) for caller in (trust.judge(None), judge(trust, new_leaf)))


# -- what is kept ----------------------------------------------------------------------------------------------


def test_a_verdict_is_made_once(cluster: Cluster, trust: TrustStore) -> None:
    leaf = cluster.pki.leaf(cluster.ca, cn="jane")
    assert judge(trust, leaf) is judge(trust, leaf)


def test_a_resumed_session_has_the_intermediates_of_before(
    cluster: Cluster, trust: TrustStore, clock: Clock
) -> None:
    middle = cluster.pki.ca("middle", issuer=cluster.ca)
    leaf = cluster.pki.leaf(middle, cn="jane")
    assert judge(trust, leaf, resumed=True).kind is CallerKind.UNVERIFIED
    assert judge(trust, leaf).kind is CallerKind.CERTIFICATE, "a refusal is not kept"
    assert judge(trust, leaf, resumed=True).kind is CallerKind.CERTIFICATE
    trust.replace(trust.bundles)
    assert judge(trust, leaf, resumed=True).kind is CallerKind.CERTIFICATE
    trust.replace(bundles(cluster.pki.ca("new"), cluster.front_proxy_ca))
    assert judge(trust, leaf, resumed=True).kind is CallerKind.UNVERIFIED


def test_no_more_than_so_many_verdicts_are_kept(
    cluster: Cluster, trust: TrustStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_KEPT_VERDICTS", 3)
    leaves = [cluster.pki.leaf(cluster.ca, cn=f"user-{number}") for number in range(4)]
    first = [judge(trust, leaf) for leaf in leaves]
    again = [judge(trust, leaf) for leaf in reversed(leaves)][::-1]
    assert [one is other for one, other in zip(first, again, strict=True)] == [False, True, True, True]
    stranger = cluster.pki.ca("stranger")
    for number in range(5):
        judge(trust, cluster.pki.leaf(stranger, cn=f"stranger-{number}"))
    assert judge(trust, leaves[3]) is first[3], "strangers push nobody out"


# -- bundles ---------------------------------------------------------------------------------------------------


def test_bundles_of_a_configuration(cluster: Cluster) -> None:
    trust = cluster.trust()
    names = {"balancer": CallerKind.FRONT_PROXY, "reporter": CallerKind.REPORT_ONLY, "x": CallerKind.UNLISTED}
    for name, kind in names.items():
        assert judge(trust, cluster.pki.leaf(cluster.front_proxy_ca, cn=name)).kind is kind
    assert judge(trust, cluster.pki.leaf(cluster.ca, cn="jane")).kind is CallerKind.CERTIFICATE


def test_without_a_client_ca_file_nobody_is_a_user(cluster: Cluster) -> None:
    configuration = cluster.configuration()
    listener = configuration.listener.model_copy(update={"client_ca_file": None})
    trust = TrustStore.from_configuration(configuration.model_copy(update={"listener": listener}), RULES)
    assert judge(trust, cluster.pki.leaf(cluster.ca, cn="jane")).kind is CallerKind.UNVERIFIED


def test_bundles_that_share_a_key_are_refused(cluster: Cluster) -> None:
    cluster.pki.ca("anew", cn="front-proxy-ca", private_key=cluster.front_proxy_ca.private_key)
    anew = cluster.pki.folder / "anew.crt"
    cluster.ca.cert_file.write_bytes(cluster.ca.pem + anew.read_bytes())
    with pytest.raises(TrustError, match="shares a key") as raised:
        Bundles.load(cluster.configuration())
    assert str(cluster.ca.cert_file) in str(raised.value)
    assert str(cluster.front_proxy_ca.cert_file) in str(raised.value)


@pytest.mark.parametrize("name", ["ca.crt", "front-proxy-ca.crt"])
def test_a_failed_reload_keeps_the_last_good_bundles(cluster: Cluster, name: str) -> None:
    trust = cluster.trust()
    caller = judge(trust, cluster.pki.leaf(cluster.ca, cn="jane"))
    (cluster.pki.folder / name).write_bytes(b"half a fi")
    with pytest.raises(TrustError, match=name):
        trust.replace(Bundles.load(cluster.configuration()))
    assert trust.still_valid(caller, cluster.pki.now.timestamp())
