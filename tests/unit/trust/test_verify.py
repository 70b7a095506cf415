"""Which certificates an authority vouches for. Where Go's `crypto/x509` is named, kube-apiserver does the same."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.verify import MAX_INTERMEDIATES, Authorities, UnverifiedError, usable_intermediates
from tests.pki import (
    ANY,
    CLIENT,
    DAY,
    HOUR,
    NO_EKU,
    SERVER,
    Authority,
    Credential,
    Pki,
    elements,
    encode,
    new_key,
)

V1 = x509.Version.v1
KEYS = ["ecdsa", "rsa", "ed25519"]
MINUTE = timedelta(minutes=1)
UNKNOWN_EXTENSION = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture
def ca(pki: Pki) -> Authority:
    return pki.ca("ca")


def vouched(
    pki: Pki,
    leaf: Credential,
    *anchors: Authority | Credential,
    sent: Sequence[Credential] | None = None,
    now: datetime | None = None,
) -> bool:
    """Whether `anchors` vouch for `leaf`; `sent`: what came beside it, by default its intermediates."""
    intermediates = usable_intermediates(
        credential.der for credential in (leaf.intermediates if sent is None else sent)
    )
    authorities = Authorities([anchor.certificate for anchor in anchors])
    try:
        chain = authorities.verify(leaf.certificate, intermediates, now or pki.now)
    except UnverifiedError:
        return False
    assert chain.certificates[0] == leaf.certificate
    assert chain.certificates[-1] in authorities.certificates
    return True


# -- signatures and names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaf_key", KEYS)
@pytest.mark.parametrize("ca_key", KEYS)
@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_keys_and_versions(pki: Pki, ca_key: str, leaf_key: str, version: x509.Version) -> None:
    ca, other = pki.ca("ca", key=ca_key), pki.ca("other", cn="ca", key=ca_key)
    leaf = pki.leaf(ca, cn="jane", key=leaf_key, version=version)
    assert vouched(pki, leaf, ca)
    assert not vouched(pki, leaf, other), "the same subject, another key"


@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_a_bundle_of_several_authorities_that_share_a_subject(pki: Pki, version: x509.Version) -> None:
    authorities = [pki.ca(f"ca-{number}", cn="ca", key_identifiers=False) for number in range(4)]
    for ca in authorities:
        leaf = pki.leaf(ca, cn="jane", version=version)
        assert vouched(pki, leaf, *authorities)
        assert not vouched(pki, leaf, *(other for other in authorities if other is not ca))


@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_a_changed_certificate_is_not_vouched_for(pki: Pki, ca: Authority, version: x509.Version) -> None:
    der = pki.leaf(ca, cn="jane", version=version).der
    forged = x509.load_der_x509_certificate(der.replace(b"jane", b"root"))
    with pytest.raises(UnverifiedError):
        Authorities([ca.certificate]).verify(forged, [], pki.now)


@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_an_authority_issued_anew_for_its_key(pki: Pki, ca: Authority, version: x509.Version) -> None:
    leaf = pki.leaf(ca, cn="jane", version=version)
    anew = pki.ca("anew", cn="ca", private_key=ca.private_key)
    renamed = pki.ca("renamed", private_key=ca.private_key)
    assert vouched(pki, leaf, anew)
    assert not vouched(pki, leaf, renamed), "an issuer is found by name"


def test_self_signed_strangers(pki: Pki, ca: Authority) -> None:
    stranger = pki.ca("stranger", cn="ca")
    assert not vouched(pki, stranger, ca)
    assert not vouched(pki, pki.leaf(stranger, cn="jane"), ca, sent=[stranger])


def test_a_leaf_that_is_in_the_bundle_itself(pki: Pki, ca: Authority) -> None:
    # Go: `if opts.Roots.contains(c)`.
    leaf = pki.leaf(ca, cn="jane")
    assert vouched(pki, leaf, leaf)
    assert not vouched(pki, pki.leaf(ca, cn="jane"), leaf)


@pytest.mark.parametrize("digest", [hashes.SHA1, hashes.SHA384, hashes.SHA512])
@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_signature_digests(pki: Pki, digest: type[hashes.HashAlgorithm], version: x509.Version) -> None:
    ca = pki.ca("ca", key="rsa")
    leaf = pki.leaf(ca, cn="jane", version=version)
    der = _signed_with(leaf.certificate, ca, digest())
    authorities = Authorities([ca.certificate])
    if digest is hashes.SHA1:
        with pytest.raises(UnverifiedError):
            authorities.verify(der, [], pki.now)
    else:
        assert authorities.verify(der, [], pki.now).certificates == (der, ca.certificate)


def _signed_with(leaf: x509.Certificate, ca: Authority, digest: hashes.HashAlgorithm) -> x509.Certificate:
    """`leaf` with the signature algorithm changed in both places, signed again."""
    last = {"sha1": 0x05, "sha384": 0x0C, "sha512": 0x0D}[digest.name]  # PKCS #1: 1.2.840.113549.1.1.*
    algorithm = encode(
        0x30, encode(0x06, bytes.fromhex("2a864886f70d0101") + bytes([last])) + encode(0x05, b"")
    )
    fields = elements(leaf.tbs_certificate_bytes)
    fields[2 if fields[0][0] == 0xA0 else 1] = algorithm
    tbs = encode(0x30, b"".join(fields))
    assert isinstance(ca.private_key, rsa.RSAPrivateKey)
    signature = ca.private_key.sign(tbs, padding.PKCS1v15(), digest)
    return x509.load_der_x509_certificate(encode(0x30, tbs + algorithm + encode(0x03, b"\0" + signature)))


@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_an_authority_of_a_short_rsa_key(pki: Pki, version: x509.Version) -> None:
    short = rsa.generate_private_key(65537, 1024)
    ca = pki.ca("short", private_key=short)
    assert not vouched(pki, pki.leaf(ca, cn="jane", version=version), ca)


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()])
def test_other_curves(pki: Pki, curve: ec.EllipticCurve) -> None:
    ca = pki.ca("ca", private_key=ec.generate_private_key(curve))
    assert vouched(pki, pki.leaf(ca, cn="jane", private_key=ec.generate_private_key(curve)), ca)
    assert vouched(pki, pki.leaf(ca, cn="jane", version=V1), ca)


# -- validity --------------------------------------------------------------------------------------------------

PERIODS = [("past", -2 * HOUR, -MINUTE), ("future", MINUTE, HOUR)]


@pytest.mark.parametrize(
    ("not_before", "not_after"), [period[1:] for period in PERIODS], ids=["past", "future"]
)
@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_validity_of_leaf_and_authority(
    pki: Pki, ca: Authority, version: x509.Version, not_before: timedelta, not_after: timedelta
) -> None:
    leaf = pki.leaf(ca, cn="jane", version=version, not_before=not_before, not_after=not_after)
    assert not vouched(pki, leaf, ca)
    other = pki.ca("other", not_before=not_before, not_after=not_after)
    assert not vouched(pki, pki.leaf(other, cn="jane", version=version), other)


@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
def test_both_ends_of_validity_are_included(pki: Pki, ca: Authority, version: x509.Version) -> None:
    leaf = pki.leaf(ca, cn="jane", version=version, not_before=-MINUTE, not_after=MINUTE)
    second = timedelta(seconds=1)
    for now, expected in [
        (pki.now - MINUTE - second, False),
        (pki.now - MINUTE, True),
        (pki.now + MINUTE, True),
        (pki.now + MINUTE + second, False),
    ]:
        assert vouched(pki, leaf, ca, now=now) is expected, now


def test_a_chain_is_valid_while_all_of_it_is(pki: Pki) -> None:
    root = pki.ca("root", not_before=-3 * HOUR, not_after=5 * HOUR)
    middle = pki.ca("middle", issuer=root, not_before=-2 * HOUR, not_after=3 * HOUR)
    leaf = pki.leaf(middle, cn="jane", not_before=-HOUR, not_after=DAY)
    chain = Authorities([root.certificate]).verify(leaf.certificate, [middle.certificate], pki.now)
    assert chain.not_before == (pki.now - HOUR).timestamp()
    assert chain.not_after == (pki.now + 3 * HOUR).timestamp()


# -- what the certificate is for -------------------------------------------------------------------------------

CODE_SIGNING = (ExtendedKeyUsageOID.CODE_SIGNING,)
USAGES = [
    (CLIENT, True),
    (ANY, True),
    (NO_EKU, True),
    (SERVER + CLIENT, True),
    (SERVER, False),
    (CODE_SIGNING, False),
]


@pytest.mark.parametrize(("usages", "expected"), USAGES)
@pytest.mark.parametrize("ca_key", ["ecdsa", "ed25519"])
def test_extended_key_usage_of_the_leaf(
    pki: Pki, ca_key: str, usages: tuple[x509.ObjectIdentifier, ...], expected: bool
) -> None:
    ca = pki.ca("ca", key=ca_key)
    assert vouched(pki, pki.leaf(ca, cn="jane", eku=usages), ca) is expected


@pytest.mark.parametrize(("usages", "expected"), [usage for usage in USAGES if usage[0]])
def test_extended_key_usage_is_nested(
    pki: Pki, ca: Authority, usages: tuple[x509.ObjectIdentifier, ...], expected: bool
) -> None:
    # Go: checkChainForKeyUsage, root included.
    extension = (x509.ExtendedKeyUsage(usages), False)
    root = pki.ca("root", extensions=[extension])
    assert vouched(pki, pki.leaf(root, cn="jane"), root) is expected
    assert vouched(pki, pki.leaf(root, cn="jane", version=V1), root) is expected
    middle = pki.ca("middle", issuer=ca, extensions=[extension])
    assert vouched(pki, pki.leaf(middle, cn="jane", eku=NO_EKU), ca) is expected


@pytest.mark.parametrize("ca_key", ["ecdsa", "ed25519"])
def test_critical_extensions(pki: Pki, ca_key: str) -> None:
    ca = pki.ca("ca", key=ca_key)
    usage = x509.ExtendedKeyUsage(CLIENT)
    assert vouched(pki, pki.leaf(ca, cn="jane", eku=NO_EKU, extensions=[(usage, True)]), ca)
    assert vouched(pki, pki.leaf(ca, cn="jane", extensions=[(UNKNOWN_EXTENSION, False)]), ca)
    assert not vouched(pki, pki.leaf(ca, cn="jane", extensions=[(UNKNOWN_EXTENSION, True)]), ca)


@pytest.mark.parametrize("ca_key", ["ecdsa", "ed25519"])
def test_key_identifiers_are_not_needed(pki: Pki, ca_key: str) -> None:
    for identified in (True, False):
        ca = pki.ca("ca", key=ca_key, key_identifiers=identified)
        for leaf_identified in (True, False):
            assert vouched(pki, pki.leaf(ca, cn="jane", key_identifiers=leaf_identified), ca)


# -- who may sign ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
@pytest.mark.parametrize("key", ["ecdsa", "ed25519"])
def test_an_authority_must_be_one(pki: Pki, key: str, version: x509.Version) -> None:
    no_ca = pki.ca("no-ca", key=key, is_ca=False)
    assert not vouched(pki, pki.leaf(no_ca, cn="jane", version=version), no_ca)


@pytest.mark.parametrize("version", [x509.Version.v1, x509.Version.v3])
@pytest.mark.parametrize("key", ["ecdsa", "ed25519"])
def test_an_authority_whose_key_usage_lacks_signing(pki: Pki, key: str, version: x509.Version) -> None:
    # Go: CheckSignatureFrom.
    ca = pki.ca("ca", key=key, signs=False)
    assert not vouched(pki, pki.leaf(ca, cn="jane", version=version), ca)


def test_a_leaf_does_not_sign(pki: Pki, ca: Authority) -> None:
    leaf = pki.leaf(ca, cn="jane")
    as_authority = Authority(leaf.certificate, leaf.private_key, leaf.cert_file, leaf.key_file, ca)
    for version in (V1, x509.Version.v3):
        forged = pki.leaf(as_authority, cn="admin", version=version)
        assert not vouched(pki, forged, ca, sent=[leaf])


def test_a_version_1_certificate_signs_only_as_a_trust_anchor(pki: Pki, ca: Authority) -> None:
    # Go: an anchor of version 1 is one because the operator put it into the bundle; as an intermediate it is none.
    user = pki.leaf(ca, cn="user", version=V1)
    as_authority = Authority(user.certificate, user.private_key, user.cert_file, user.key_file, ca)
    leaf = pki.leaf(as_authority, cn="admin")
    assert not vouched(pki, leaf, ca, sent=[user])
    assert vouched(pki, leaf, user)


# -- intermediates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ecdsa", "rsa"])
def test_intermediates_as_sent(pki: Pki, key: str) -> None:
    root = pki.ca("root", key=key)
    first = pki.ca("first", issuer=root, key=key)
    second = pki.ca("second", issuer=first, key=key)
    leaf = pki.leaf(second, cn="jane", key=key)
    stranger = pki.ca("stranger")
    assert vouched(pki, leaf, root)
    assert vouched(pki, leaf, root, sent=[first, stranger, second]), "in any order, with others among them"
    assert vouched(pki, leaf, second, sent=[]), "an intermediate in the bundle is an anchor"
    assert not vouched(pki, leaf, root, sent=[second])
    assert not vouched(pki, leaf, root, sent=[first])
    assert not vouched(pki, leaf, root, sent=[])
    assert not vouched(pki, leaf, stranger)


def test_path_length(pki: Pki) -> None:
    root = pki.ca("root", path_length=0)
    assert vouched(pki, pki.leaf(root, cn="jane"), root)
    middle = pki.ca("middle", issuer=root)
    assert not vouched(pki, pki.leaf(middle, cn="jane"), root)


def test_an_expired_intermediate(pki: Pki, ca: Authority) -> None:
    middle = pki.ca("middle", issuer=ca, not_before=-2 * HOUR, not_after=-MINUTE)
    assert not vouched(pki, pki.leaf(middle, cn="jane"), ca)


def test_a_long_chain_ends(pki: Pki) -> None:
    ca = root = pki.ca("root")
    for number in range(40):
        ca = pki.ca(f"ca-{number}", issuer=ca)
    assert not vouched(pki, pki.leaf(ca, cn="jane"), root)


@pytest.mark.parametrize(("key", "version"), [("ecdsa", V1), ("ed25519", V1), ("ed25519", x509.Version.v3)])
def test_intermediates_where_the_check_is_made_by_hand(pki: Pki, key: str, version: x509.Version) -> None:
    root = pki.ca("root", key=key)
    first = pki.ca("first", issuer=root)
    second = pki.ca("second", issuer=first, path_length=0)
    leaf = pki.leaf(second, cn="jane", version=version)
    assert vouched(pki, leaf, pki.ca("other"), root, sent=[first, second])
    assert vouched(pki, leaf, second, sent=[])
    assert not vouched(pki, leaf, root, sent=[first])
    assert not vouched(pki, leaf, root, sent=[second])
    assert not vouched(pki, leaf, pki.ca("other-root", cn="root", key=key))
    assert not vouched(pki, leaf, root, now=pki.now + 2 * DAY)
    third = pki.ca("third", issuer=second)
    assert not vouched(pki, pki.leaf(third, cn="jane", version=version), root), "path length 0"
    no_ca = pki.ca("no-ca", issuer=root, is_ca=False)
    assert not vouched(pki, pki.leaf(no_ca, cn="jane", version=version), root)


def test_intermediates_that_are_of_use(pki: Pki, ca: Authority) -> None:
    first, second = pki.ca("first", issuer=ca), pki.ca("second", issuer=ca)
    assert usable_intermediates([b"", first.der, b"0\0", second.der]) == [
        first.certificate,
        second.certificate,
    ]


def test_one_name_and_key_is_tried_once(pki: Pki, ca: Authority) -> None:
    """What a stranger can make the verifier do is bounded: no certificates that all issued each other."""
    key = new_key()
    web = [pki.ca(f"web-{number}", cn="web", private_key=key) for number in range(6)]
    usable = usable_intermediates([each.der for each in (*web, pki.ca("last", issuer=ca))])
    assert [certificate.subject.rfc4514_string() for certificate in usable] == ["CN=web", "CN=last"]
    many = [pki.ca(f"ca-{number}", issuer=ca).der for number in range(MAX_INTERMEDIATES + 3)]
    assert len(usable_intermediates(many)) == MAX_INTERMEDIATES


# -- name constraints ------------------------------------------------------------------------------------------


def test_name_constraints(pki: Pki) -> None:
    names = x509.NameConstraints([x509.DNSName("example.com")], None)
    ca = pki.ca("ca", extensions=[(names, True)])
    assert vouched(pki, pki.leaf(ca, cn="jane"), ca)
    assert vouched(pki, pki.leaf(ca, cn="jane", san=["a.example.com"]), ca)
    assert not vouched(pki, pki.leaf(ca, cn="jane", san=["a.example.org"]), ca)


@pytest.mark.parametrize("critical", [True, False])
def test_name_constraints_where_the_check_is_made_by_hand(pki: Pki, critical: bool) -> None:
    names = x509.NameConstraints([x509.DNSName("example.com")], None)
    ca = pki.ca("ca", key="ed25519", extensions=[(names, critical)])
    assert not vouched(pki, pki.leaf(ca, cn="jane"), ca)
    assert not vouched(pki, pki.leaf(ca, cn="jane", version=V1), ca)


# -- bundles ---------------------------------------------------------------------------------------------------


def test_load_a_bundle(pki: Pki, ca: Authority) -> None:
    other = pki.ca("other", key="rsa")
    authorities = Authorities.load(pki.bundle("bundle", [ca, other]))
    assert authorities.certificates == (ca.certificate, other.certificate)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "no PEM certificates"),
        (b"hello", "no PEM certificates"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no PEM certificates"),
    ],
)
def test_a_bundle_that_cannot_be_loaded_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrustError, match=message) as raised:
        Authorities.load(path)
    assert str(path) in str(raised.value)


def test_a_key_file_in_place_of_a_bundle_is_not_quoted(ca: Authority) -> None:
    with pytest.raises(TrustError) as raised:
        Authorities.load(ca.key_file)
    assert "BEGIN" not in str(raised.value)
