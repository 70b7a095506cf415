"""A public key infrastructure like a kubeadm cluster's, and the configuration that names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orca_sidecar.core.identity import IdentityRules
from orca_sidecar.settings.load_metrics import LoadMetricsSettings, OptInSettings
from orca_sidecar.settings.schema import (
    FrontProxyClientSettings,
    FrontProxySettings,
    ListenerSettings,
    ListenerTLSSettings,
    SidecarConfiguration,
    UpstreamSettings,
    UpstreamTLSSettings,
)
from orca_sidecar.trust.store import TrustStore
from tests.pki import SERVER, Authority, Pki

RULES = IdentityRules(["X-Remote-User"], ["X-Remote-Group"], ["X-Remote-Uid"], ["X-Remote-Extra-"])


@dataclass
class Cluster:
    """`configuration()` names its files as they are now."""

    pki: Pki
    ca: Authority
    front_proxy_ca: Authority

    def configuration(self, **listener_tls: Any) -> SidecarConfiguration:
        folder = self.pki.folder
        return SidecarConfiguration(
            api_version="orca-sidecar.dev/v1alpha1",
            kind="SidecarConfiguration",
            listener=ListenerSettings(
                tls=ListenerTLSSettings(
                    cert_file=folder / "apiserver.crt", key_file=folder / "apiserver.key", **listener_tls
                ),
                client_ca_file=self.ca.cert_file,
            ),
            upstream=UpstreamSettings(
                tls=UpstreamTLSSettings(ca_file=self.ca.cert_file),
                front_proxy_client=FrontProxyClientSettings(
                    cert_file=folder / "front-proxy-client.crt", key_file=folder / "front-proxy-client.key"
                ),
            ),
            front_proxy=FrontProxySettings(
                client_ca_file=self.front_proxy_ca.cert_file, allowed_names=("balancer",)
            ),
            load_metrics=LoadMetricsSettings(opt_in=OptInSettings(allowed_names=("reporter",))),
        )

    def trust(self) -> TrustStore:
        return TrustStore.from_configuration(self.configuration(), RULES)


def make_cluster(
    folder: Path, *, front_proxy_cn: str = "front-proxy-ca", key_identifiers: bool = True
) -> Cluster:
    pki = Pki(folder)
    ca = pki.ca("ca", key_identifiers=key_identifiers)
    front_proxy_ca = pki.ca("front-proxy-ca", cn=front_proxy_cn, key_identifiers=key_identifiers)
    pki.leaf(ca, name="apiserver", cn="kube-apiserver", eku=SERVER, san=["kubernetes"])
    pki.leaf(front_proxy_ca, name="front-proxy-client", cn="front-proxy-client")
    return Cluster(pki, ca, front_proxy_ca)
