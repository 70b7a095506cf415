import stat

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orca_sidecar.demo.pki import LOAD_BALANCER_NAME, write_pki


def certificate(folder, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def test_leaves_are_signed_by_the_authority_that_each_side_trusts(tmp_path):
    write_pki(tmp_path)
    issuers = {
        "apiserver": "ca",
        "apiserver-lb": "ca",
        "front-proxy-client": "front-proxy-ca",
        "load-balancer": "front-proxy-ca",
    }
    for leaf, issuer in issuers.items():
        certificate(tmp_path, leaf).verify_directly_issued_by(certificate(tmp_path, issuer))


def test_names_and_usages(tmp_path):
    write_pki(tmp_path)
    envoy = certificate(tmp_path, "load-balancer")
    (name,) = envoy.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == LOAD_BALANCER_NAME
    assert list(envoy.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    sans = certificate(tmp_path, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert sans.value.get_values_for_type(x509.DNSName) == ["kubernetes", "kubernetes.default.svc"]
    assert sans.value.get_values_for_type(x509.IPAddress) == []


def test_only_the_owner_reads_a_key(tmp_path):
    write_pki(tmp_path)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.key")}
    assert modes == {0o600}
