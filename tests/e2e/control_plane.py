"""A real etcd and kube-apiserver, with the certificates that kubeadm would make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization

from tests.e2e.kubectl import Kubectl
from tests.e2e.processes import Program, Started, free_port, wait_until
from tests.e2e.wire import Route
from tests.pki import CLIENT, SERVER, Authority, Credential, Pki


@dataclass
class Authorities:
    """What kubeadm makes below /etc/kubernetes/pki, and the callers of the tests."""

    pki: Pki
    ca: Authority
    front_proxy_ca: Authority
    stranger_ca: Authority
    apiserver: Credential
    listener: Credential
    front_proxy_client: Credential
    gateway: Credential
    load_balancer: Credential
    kubelet: Credential
    admin: Credential
    service_account_key: Path
    service_account_public_key: Path

    @classmethod
    def make(cls, folder: Path) -> Authorities:
        pki = Pki(folder)
        ca, front_proxy_ca = pki.ca("ca", cn="kubernetes"), pki.ca("front-proxy-ca")
        signer = pki.leaf(ca, name="service-account", cn="service-account", key="rsa")
        public_key = folder / "service-account.pub"
        public_key.write_bytes(
            signer.private_key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        names = ["kubernetes", "kubernetes.default.svc", "10.96.0.1"]
        return cls(
            pki=pki,
            ca=ca,
            front_proxy_ca=front_proxy_ca,
            stranger_ca=pki.ca("stranger-ca"),
            # As kubeadm's: not valid for 127.0.0.1, so that the sidecar must ask for "kubernetes".
            apiserver=pki.leaf(
                ca, name="apiserver", cn="kube-apiserver", eku=SERVER, san=names, key_identifiers=True
            ),
            listener=pki.leaf(
                ca,
                name="listener",
                cn="orca-sidecar",
                eku=SERVER,
                san=[*names, "127.0.0.1"],
                key_identifiers=True,
            ),
            front_proxy_client=pki.leaf(front_proxy_ca, cn="front-proxy-client"),
            gateway=pki.leaf(front_proxy_ca, cn="gateway"),
            load_balancer=pki.leaf(front_proxy_ca, cn="load-balancer"),
            kubelet=pki.leaf(ca, name="kubelet", cn="kubelet", eku=[*SERVER, *CLIENT], san=["127.0.0.1"]),
            admin=pki.leaf(ca, cn="kubernetes-admin", o=["system:masters"]),
            service_account_key=signer.key_file,
            service_account_public_key=public_key,
        )


TOKENS = {
    "admin-token": 'admin,uid-admin,"system:masters"',
    "jane-token": 'jane,uid-jane,"developers,qa"',
    "joe-token": "joe,uid-joe,developers",
    "impersonator-token": "impersonator,,",
}
"""Static bearer tokens, each with its user, UID and groups as in kube-apiserver's token file."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlane(Started):
    """One etcd and one kube-apiserver over it, or a second kube-apiserver over the same etcd."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        authorities: Authorities,
        etcd_url: str = "",
        extra_flags: Sequence[str] = (),
    ) -> None:
        folder.mkdir()
        self.programs, self.folder, self.authorities = programs, folder, authorities
        self.audit_log = folder / "audit.jsonl"
        self.etcd: Program | None = None
        if not etcd_url:
            self.etcd, etcd_url = self._start_etcd()
        self.etcd_url = etcd_url
        self.port = free_port()
        self.direct = Route("direct", self.port, authorities.ca.cert_file)
        (folder / "tokens.csv").write_text("".join(f"{token},{user}\n" for token, user in TOKENS.items()))
        (folder / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        a = authorities
        self.apiserver = Program(
            f"kube-apiserver-{folder.name}",
            [
                programs["kube-apiserver"],
                f"--etcd-servers={etcd_url}",
                f"--secure-port={self.port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",  # another one refuses a loopback advertise address
                f"--tls-cert-file={a.apiserver.cert_file}",
                f"--tls-private-key-file={a.apiserver.key_file}",
                f"--client-ca-file={a.ca.cert_file}",
                f"--requestheader-client-ca-file={a.front_proxy_ca.cert_file}",
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={a.front_proxy_client.cert_file}",
                f"--proxy-client-key-file={a.front_proxy_client.key_file}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={a.service_account_public_key}",
                f"--service-account-signing-key-file={a.service_account_key}",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--authorization-mode=RBAC",
                f"--token-auth-file={folder / 'tokens.csv'}",
                f"--kubelet-client-certificate={a.admin.cert_file}",
                f"--kubelet-client-key={a.admin.key_file}",
                "--kubelet-preferred-address-types=InternalIP",
                "--disable-admission-plugins=ServiceAccount",
                "--allow-privileged=true",
                f"--audit-log-path={self.audit_log}",
                f"--audit-policy-file={folder / 'audit-policy.yaml'}",
                *extra_flags,
            ],
            folder,
        )

    def _start_etcd(self) -> tuple[Program, str]:
        data = self.folder / "etcd"
        data.mkdir(mode=0o700)
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        etcd = Program(
            "etcd",
            [
                self.programs["etcd"],
                f"--data-dir={data}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
            ],
            self.folder,
        )
        return etcd, client

    def wait_ready(self) -> None:
        self.apiserver.wait_ready(lambda: self.direct.get("/readyz", token="admin-token").status == 200)
        # What RBAC's post-start hook makes is what the tests of denials lean on.
        wait_until(
            lambda: self.direct.get("/api/v1/namespaces/default", token="admin-token").status == 200,
            "namespace default",
        )

    def stop(self) -> None:
        self.apiserver.stop()
        if self.etcd is not None:
            self.etcd.stop()

    def kubectl(self, route: Route, *, token: str = "", credential: Credential | None = None) -> Kubectl:
        """kubectl over `route` as the holder of a bearer token or of a client certificate."""
        user: dict[str, str] = {}
        if token:
            user["token"] = token
        if credential is not None:
            user["client-certificate"] = str(credential.cert_file)
            user["client-key"] = str(credential.key_file)
        who = token or (credential.cert_file.stem if credential else "anonymous")
        path = self.folder / f"{route.name}-{who[:40]}.kubeconfig"
        cluster = {
            "server": f"https://127.0.0.1:{route.port}",
            "certificate-authority": str(route.ca_file),
            "tls-server-name": route.server_name,
        }
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "e2e",
                    "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
                    "clusters": [{"name": "e2e", "cluster": cluster}],
                    "users": [{"name": "e2e", "user": user}],
                }
            )
        )
        return Kubectl(self.programs["kubectl"], path)
