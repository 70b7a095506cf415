"""Certificates whose subjects are out of the ordinary, and what is to be said of each."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from tests.pki import Authority, Credential, Pki, elements, encode, resigned

Attribute = tuple[bytes, int, bytes]
"""OID, string type and content, as bytes."""


def said(user: str, *groups: str) -> list[bytes]:
    return [
        b"X-Remote-User: " + user.encode(),
        *(b"X-Remote-Group: " + group.encode() for group in groups),
    ]


def certificate(pki: Pki, ca: Authority, attributes: Sequence[Attribute]) -> Credential:
    """A certificate whose subject holds these attributes, each in a set of its own."""
    leaf = pki.leaf(ca, cn="placeholder", name=f"odd-{sum(1 for _ in pki.folder.glob('*.crt'))}")
    subject = b"".join(
        encode(0x31, encode(0x30, encode(0x06, oid) + encode(tag, content)))
        for oid, tag, content in attributes
    )
    fields = elements(leaf.certificate.tbs_certificate_bytes)
    fields[5] = encode(0x30, subject)
    return written(leaf, resigned(leaf.certificate, encode(0x30, b"".join(fields)), ca.private_key))


def written(leaf: Credential, der: bytes) -> Credential:
    """`leaf` with another certificate in its file."""
    leaf.cert_file.write_text(ssl.DER_cert_to_PEM_cert(der))
    return leaf


CN, ORG, UID = (bytes.fromhex(oid) for oid in ("550403", "55040a", "2b0601040183c25302"))
UTF8, NUMERIC, PRINTABLE, T61, IA5, UNIVERSAL, BMP = 0x0C, 0x12, 0x13, 0x14, 0x16, 0x1C, 0x1E
INJECTED = b"jane\r\nX-Remote-Group: system:masters"

REFUSED = None

SUBJECTS: dict[str, tuple[list[Attribute], list[bytes] | None]] = {
    "BMPString": ([(CN, BMP, "jané☃".encode("utf-16-be"))], said("jané☃")),
    "T61String": ([(CN, T61, b"jan\xe9")], said("jané")),
    "PrintableString": ([(CN, PRINTABLE, b"jane")], said("jane")),
    "IA5String": ([(CN, IA5, b"jane@x")], said("jane@x")),
    "NumericString": ([(CN, NUMERIC, b"12 3")], said("12 3")),
    "two CNs, the last counts": ([(CN, UTF8, b"root"), (CN, UTF8, b"jane")], said("jane")),
    "two CNs of two types": ([(CN, UTF8, b"root"), (CN, BMP, "jane".encode("utf-16-be"))], said("jane")),
    "O twice": ([(ORG, UTF8, b"a"), (ORG, UTF8, b"a"), (CN, UTF8, b"jane")], said("jane", "a", "a")),
    "C1 controls": ([(CN, UTF8, "j\u0085e".encode())], said("j\u0085e")),
    "blanks of Unicode's": ([(CN, UTF8, "\u00a0jane\u3000".encode())], said("\u00a0jane\u3000")),
    "a name like a header": ([(CN, UTF8, b"X-Remote-User: root")], said("X-Remote-User: root")),
    "NUL": ([(CN, UTF8, b"root\0.jane")], REFUSED),
    "NUL in BMPString": ([(CN, BMP, "root\0".encode("utf-16-be") + b"\0a")], REFUSED),
    "line break": ([(CN, UTF8, INJECTED)], REFUSED),
    "line break in BMPString": ([(CN, BMP, INJECTED.decode().encode("utf-16-be"))], REFUSED),
    "line break in T61String": ([(CN, T61, INJECTED)], REFUSED),
    "line break in IA5String": ([(CN, IA5, INJECTED)], REFUSED),
    "line break in O": ([(ORG, UTF8, b"a\r\nX-Remote-User: root"), (CN, UTF8, b"jane")], REFUSED),
    "line break in UID": ([(UID, UTF8, b"1\nX-Remote-User: root"), (CN, UTF8, b"jane")], REFUSED),
    "line break in a CN that does not count": ([(CN, UTF8, INJECTED), (CN, UTF8, b"jane")], said("jane")),
    "tab": ([(CN, UTF8, b"ja\tne")], REFUSED),
    "trailing blank": ([(CN, UTF8, b"jane ")], REFUSED),
    "DEL": ([(CN, UTF8, b"jane\x7f")], REFUSED),
    "no CN": ([(ORG, UTF8, b"system:masters")], REFUSED),
    "an empty CN last": ([(CN, UTF8, b"jane"), (CN, UTF8, b"")], REFUSED),
    "an empty O": ([(ORG, UTF8, b""), (CN, UTF8, b"jane")], REFUSED),
    "two UIDs": ([(UID, UTF8, b"1"), (UID, UTF8, b"2"), (CN, UTF8, b"jane")], REFUSED),
    "system:anonymous": ([(CN, UTF8, b"system:anonymous")], REFUSED),
    "UniversalString": ([(CN, UNIVERSAL, "jane".encode("utf-32-be"))], REFUSED),
    "an underscore in PrintableString": ([(CN, PRINTABLE, b"ja_ne")], REFUSED),
    "no subject": ([], REFUSED),
}
"""What kube-apiserver makes of a subject, or 401 where it makes nothing of it, or headers cannot say it. What OpenSSL
itself does not parse comes no further than the handshake and is left out.
"""
