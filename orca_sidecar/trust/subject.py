"""The identity in a certificate's subject, read from the DER exactly as Go reads it.

kube-apiserver's user is what Go's `crypto/x509` makes of the subject. A library that decodes a string type in
another way, or that accepts what Go refuses, would assert somebody else; so this follows
`crypto/x509/parser.go` (`parseName`, `parseASN1String`) and `pkix.Name.FillFromRDNSequence`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import iter_unpack

from cryptography import x509

from orca_sidecar.core.identity import Subject

_COMMON_NAME = bytes.fromhex("550403")  # 2.5.4.3
_ORGANIZATION = bytes.fromhex("55040a")  # 2.5.4.10
_UID = bytes.fromhex("2b0601040183c25302")  # 1.3.6.1.4.1.57683.2

_SEQUENCE, _SET, _OBJECT_IDENTIFIER, _EXPLICIT_VERSION = 0x30, 0x31, 0x06, 0xA0
_UTF8_STRING, _NUMERIC_STRING, _PRINTABLE_STRING = 0x0C, 0x12, 0x13
_T61_STRING, _IA5_STRING, _BMP_STRING = 0x14, 0x16, 0x1E

_PRINTABLE = re.compile(rb"[A-Za-z0-9 '()+,\-./:=?*&]*")
_NUMERIC = re.compile(rb"[0-9 ]*")


def read_subject(certificate: x509.Certificate) -> Subject:
    """The subject's last CN, every O and every UID, in DER order.

    Raises `ValueError` for a subject that Go does not parse; kube-apiserver aborts the handshake of such a
    certificate.
    """
    common_name = ""
    organizations: list[str] = []
    uids: list[str] = []
    for kind, value in _attributes(_subject_of(certificate)):
        if kind == _COMMON_NAME:
            common_name = value
        elif kind == _ORGANIZATION:
            organizations.append(value)
        elif kind == _UID:
            uids.append(value)
    return Subject(common_name, tuple(organizations), tuple(uids))


def comparable_name(certificate: x509.Certificate) -> tuple[tuple[bytes, str], ...]:
    """The subject in a form that is equal for names that OpenSSL takes for one: RFC 5280 §7.1, without case
    and surplus blanks. Raises `ValueError` as `read_subject` does.
    """
    return tuple(
        (kind, " ".join(value.lower().split())) for kind, value in _attributes(_subject_of(certificate))
    )


def _subject_of(certificate: x509.Certificate) -> bytes:
    """The content of the subject: RFC 5280 §4.1, after serial number, algorithm, issuer and validity."""
    (_, tbs), *_ = _elements(certificate.tbs_certificate_bytes)
    fields = [element for element in _elements(tbs) if element[0] != _EXPLICIT_VERSION]
    return _expect(_SEQUENCE, fields[4])


def _attributes(name: bytes) -> Iterator[tuple[bytes, str]]:
    for rdn in _elements(name):
        for attribute in _elements(_expect(_SET, rdn)):
            kind, value, *rest = _elements(_expect(_SEQUENCE, attribute))
            if rest:
                raise ValueError("an attribute with more than a type and a value")
            yield _expect(_OBJECT_IDENTIFIER, kind), _string(*value)


def _string(tag: int, content: bytes) -> str:
    """One attribute value, of the string types Go knows."""
    if tag == _UTF8_STRING:
        return content.decode("utf-8")
    if tag == _PRINTABLE_STRING and _PRINTABLE.fullmatch(content):
        return content.decode("ascii")
    if tag == _IA5_STRING:
        return content.decode("ascii")
    if tag == _NUMERIC_STRING and _NUMERIC.fullmatch(content):
        return content.decode("ascii")
    if tag == _T61_STRING:
        return content.decode("latin-1")
    if tag == _BMP_STRING and len(content) % 2 == 0:
        points = [point for (point,) in iter_unpack(">H", content.removesuffix(b"\0\0"))]
        if not any(map(_is_reserved, points)):
            return "".join(map(chr, points))
    raise ValueError("an attribute value of a type that is not supported, or not valid for its type")


def _is_reserved(point: int) -> bool:
    """UCS-2 has no surrogates, and Go takes no noncharacters either."""
    return 0xD800 <= point <= 0xDFFF or 0xFDD0 <= point <= 0xFDEF or point >= 0xFFFE


def _expect(tag: int, element: tuple[int, bytes]) -> bytes:
    if element[0] != tag:
        raise ValueError(f"DER tag {element[0]:#x} where {tag:#x} belongs")
    return element[1]


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The DER elements of some content: tag and content of each (X.690 §8.1, definite lengths)."""
    at = 0
    while at < len(content):
        header = content[at : at + 2]
        if len(header) < 2 or header[0] & 0x1F == 0x1F or header[1] == 0x80:
            raise ValueError("malformed DER")
        tag, length = header
        at += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(content[at : at + size], "big")
            at += size
        if at + length > len(content):
            raise ValueError("malformed DER")
        yield tag, content[at : at + length]
        at += length
