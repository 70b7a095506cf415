"""Subjects are read as Go reads them, whatever string types the DER holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from orca_sidecar.core.identity import Subject
from orca_sidecar.trust.subject import comparable_name, read_subject
from tests.pki import Authority, Pki, elements, encode, resigned

CN, ORG, UID = "550403", "55040a", "2b0601040183c25302"
UTF8, NUMERIC, PRINTABLE, T61, IA5, BMP = 0x0C, 0x12, 0x13, 0x14, 0x16, 0x1E
OCTETS, BITS, INTEGER, UNIVERSAL, VISIBLE = 0x04, 0x03, 0x02, 0x1C, 0x1A


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Pki(tmp_path_factory.mktemp("pki")).ca("ca")


def attribute(kind: str, tag: int, value: bytes) -> bytes:
    return encode(0x30, encode(0x06, bytes.fromhex(kind)) + encode(tag, value))


def with_subject(ca: Authority, *rdns: bytes) -> x509.Certificate:
    """A certificate whose subject has exactly these attributes, each element a set's content."""
    certificate = Pki(ca.cert_file.parent).leaf(ca, cn="placeholder").certificate
    fields = elements(certificate.tbs_certificate_bytes)
    fields[5] = encode(0x30, b"".join(encode(0x31, rdn) for rdn in rdns))
    return x509.load_der_x509_certificate(
        resigned(certificate, encode(0x30, b"".join(fields)), ca.private_key)
    )


def test_last_name_every_organization_and_uid_in_order(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    leaf = pki.leaf(pki.ca("ca"), cn=["first", "jané"], o=["b", "a, c", "b"], uid=["1", "2"])
    assert read_subject(leaf.certificate) == Subject("jané", ("b", "a, c", "b"), ("1", "2"))


def test_version_1_and_no_attributes(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    ca = pki.ca("ca")
    v1 = pki.leaf(ca, cn="jane", o=["dev"], version=x509.Version.v1)
    assert read_subject(v1.certificate) == Subject("jane", ("dev",))
    assert read_subject(pki.leaf(ca, subject=x509.Name([])).certificate) == Subject("")


def test_other_attributes_are_passed_over(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    names = [
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "unit"),
        (NameOID.COMMON_NAME, "j"),
    ]
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in names])
    assert read_subject(pki.leaf(pki.ca("ca"), subject=subject).certificate) == Subject("j")


def test_attributes_of_one_set(ca: Authority) -> None:
    rdn = attribute(CN, UTF8, b"a") + attribute(ORG, UTF8, b"x") + attribute(ORG, UTF8, b"y")
    assert read_subject(with_subject(ca, rdn, attribute(ORG, UTF8, b"z"))) == Subject("a", ("x", "y", "z"))


def test_an_empty_last_name_is_the_last_name(ca: Authority) -> None:
    subject = with_subject(ca, attribute(CN, UTF8, b"jane"), attribute(CN, UTF8, b""))
    assert read_subject(subject) == Subject("")


@pytest.mark.parametrize(
    ("tag", "value", "text"),
    [
        (UTF8, "jané\u00a0☂".encode(), "jané\u00a0☂"),
        (UTF8, b"a\r\n\0b", "a\r\n\0b"),
        (PRINTABLE, b"a'()+,-./:=? 9Z", "a'()+,-./:=? 9Z"),
        (NUMERIC, b"12 34", "12 34"),
        (IA5, b"jane@example.com\x07", "jane@example.com\x07"),
        (T61, b"jan\xe9 \xff", "jané ÿ"),
        (BMP, "jané☂".encode("utf-16-be"), "jané☂"),
        (BMP, b"\0a\0b\0\0", "ab"),
        (BMP, b"\0\0\0a", "\0a"),
        (BMP, b"", ""),
        (T61, b"", ""),
    ],
)
@pytest.mark.parametrize("kind", [CN, ORG, UID])
def test_string_types(ca: Authority, kind: str, tag: int, value: bytes, text: str) -> None:
    name = "" if kind == CN else "jane"
    certificate = with_subject(ca, attribute(CN, UTF8, name.encode()), attribute(kind, tag, value))
    expected = {CN: Subject(text), ORG: Subject(name, (text,)), UID: Subject(name, (), (text,))}
    assert read_subject(certificate) == expected[kind]


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        (UTF8, b"\xff"),
        (UTF8, b"\xed\xa0\x80"),
        (UTF8, b"\xc0\x80"),
        (NUMERIC, b"12a"),
        (IA5, b"jan\xe9"),
        (BMP, b"\0a\0"),
        (BMP, b"\xd8\x00"),
        (BMP, "😀".encode("utf-16-be")),
        (BMP, b"\xff\xfe"),
        (BMP, b"\xfd\xd0"),
        (OCTETS, b"jane"),
        (BITS, b"\0jane"),
        (UNIVERSAL, b"\0\0\0j"),
        (VISIBLE, b"jane"),
    ],
)
@pytest.mark.parametrize("kind", [CN, ORG, UID, "550406"])
def test_subjects_that_go_does_not_parse(ca: Authority, kind: str, tag: int, value: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):  # some of them already when loaded
        read_subject(with_subject(ca, attribute(CN, UTF8, b"jane"), attribute(kind, tag, value)))


@given(name=st.text(max_size=80), organizations=st.lists(st.text(max_size=80), max_size=4))
@settings(derandomize=True, deadline=None)
def test_any_text_is_read_back(ca: Authority, name: str, organizations: list[str]) -> None:
    rdns = [attribute(ORG, UTF8, text.encode()) for text in organizations]
    certificate = with_subject(ca, *rdns, attribute(CN, UTF8, name.encode()))
    assert read_subject(certificate) == Subject(name, tuple(organizations))


def test_comparable_names_ignore_case_blanks_and_string_type(ca: Authority) -> None:
    one = with_subject(ca, attribute(CN, UTF8, b" Front  Proxy CA"))
    other = with_subject(ca, attribute(CN, PRINTABLE, b"front proxy ca "))
    third = with_subject(ca, attribute(CN, UTF8, b"frontproxyca"))
    assert comparable_name(one) == comparable_name(other) != comparable_name(third)
