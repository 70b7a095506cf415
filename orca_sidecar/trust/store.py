"""The verdict on a connection: which authority vouches for its certificate, and whom that makes of the
caller.

Verdicts on verified certificates are kept by the SHA-256 of the leaf, so that a load balancer's thousandth
connection costs a hash. They hold for one generation of the authorities and while every certificate of the
chain is valid. Refusals are not kept: a stranger with fresh certificates could otherwise push good verdicts
out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TypeVar

from cryptography import x509

from orca_sidecar.core.identity import Caller, CallerKind, IdentityRules, Refusal
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.subject import read_subject
from orca_sidecar.trust.verify import Authorities, Chain, UnverifiedError, usable_intermediates

REFUSAL_LIFETIME = 60.0
"""Seconds until a refused certificate is looked at again: it may not have been valid *yet*."""

_KEPT_VERDICTS = 4096

_Kept = TypeVar("_Kept")


@dataclass(frozen=True)
class Bundles:
    """The two sets of authorities that a configuration names; None: nobody is verified against it."""

    client: Authorities | None
    front_proxy: Authorities | None

    @classmethod
    def load(cls, configuration: SidecarConfiguration) -> Bundles:
        """Read both. Raises `TrustError` for a file that cannot be used and for bundles that share a key."""
        client_file = configuration.listener.client_ca_file
        front_proxy_file = configuration.front_proxy.client_ca_file
        client = Authorities.load(client_file) if client_file else None
        front_proxy = Authorities.load(front_proxy_file)
        if client is not None and client.public_keys & front_proxy.public_keys:
            # By public key: a certificate issued anew for the same key verifies the same signatures.
            raise TrustError(
                front_proxy_file,
                f"shares a key with {client_file}: its users could have themselves taken for front proxies",
            )
        return cls(client, front_proxy)

    def check_names(self) -> None:
        """Refuse authorities of both bundles that share a subject DN. Raises `TrustError`.

        Only where OpenSSL verifies: it picks an issuer by name, and aborts the leaves of the other one that
        carry no authority key identifier.
        """
        if (
            self.client is not None
            and self.front_proxy is not None
            and self.client.names & self.front_proxy.names
        ):
            raise TrustError(
                None,
                "listener.clientCAFile and frontProxy.clientCAFile hold authorities of the same subject name,"
                " which this Python cannot tell apart in the handshake: rename one of them",
            )


class TrustStore:
    """Judges certificates against the current authorities.

    `speakers` are the common names that may speak for others, `askers` those that may only ask for load
    reports; both of the front-proxy authorities. `clock` gives Unix seconds.
    """

    def __init__(
        self,
        bundles: Bundles,
        rules: IdentityRules,
        speakers: Sequence[str] = (),
        askers: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.bundles = bundles
        self.generation = 1
        """Counts replacements of the authorities; a verdict of an earlier one has to be made again."""
        self._rules = rules
        self._speakers = frozenset(speakers)
        self._askers = frozenset(askers)
        self._clock = clock
        self._no_certificate = Caller(CallerKind.NO_CERTIFICATE, generation=self.generation)
        self._verdicts: dict[bytes, Caller] = {}
        self._chains: dict[bytes, tuple[bytes, ...]] = {}

    @classmethod
    def from_configuration(cls, configuration: SidecarConfiguration, rules: IdentityRules) -> TrustStore:
        """Load the bundles that the configuration names. Raises `TrustError`."""
        return cls(
            Bundles.load(configuration),
            rules,
            configuration.front_proxy.allowed_names,
            configuration.load_metrics.opt_in.allowed_names,
        )

    def replace(self, bundles: Bundles) -> None:
        """Use other authorities from now on: every connection is judged again at its next request.

        `Bundles.load` raises before there is anything to replace with, so that a failed reload keeps the last
        good ones.
        """
        self.bundles = bundles
        self.generation += 1
        self._no_certificate = Caller(CallerKind.NO_CERTIFICATE, generation=self.generation)
        self._verdicts.clear()

    def still_valid(self, caller: Caller, now: float) -> bool:
        """Whether a verdict still counts at `now` (Unix seconds); if not, judge again."""
        return caller.generation == self.generation and caller.not_before <= now <= caller.not_after

    def judge(self, leaf_der: bytes | None, chain_der: Sequence[bytes] = ()) -> Caller:
        """The verdict on a connection: `leaf_der` as presented, `chain_der` whatever was sent beside it.
        Never raises.

        A resumed TLS session brings the leaf but not its intermediates; those that vouched for it before are
        remembered.
        """
        if leaf_der is None:
            return self._no_certificate
        now = self._clock()
        digest = sha256(leaf_der).digest()
        caller = self._verdicts.get(digest)
        if caller is not None and self.still_valid(caller, now):
            return caller
        intermediates = tuple(chain_der) or self._chains.get(digest, ())
        try:
            caller = self._verdict(leaf_der, intermediates, digest.hex(), now)
        except Exception as error:
            # UnverifiedError, ValueError, and what else a library may say of bytes that a stranger made up.
            return Caller(
                CallerKind.UNVERIFIED,
                not_after=now + REFUSAL_LIFETIME,
                generation=self.generation,
                detail=str(error),
            )
        _keep(self._verdicts, digest, caller)
        if intermediates:
            _keep(self._chains, digest, intermediates)
        return caller

    def _verdict(self, leaf_der: bytes, chain_der: Sequence[bytes], fingerprint: str, now: float) -> Caller:
        """Ask the front-proxy authorities first, then the client authorities, as kube-apiserver does.

        Raises `UnverifiedError`, and whatever parsers raise for what cannot be parsed.
        """
        leaf = x509.load_der_x509_certificate(leaf_der)
        subject = read_subject(leaf)
        intermediates = usable_intermediates(chain_der)
        reasons: list[str] = []

        def verify(authorities: Authorities | None) -> Chain | None:
            if authorities is None:
                return None
            try:
                return authorities.verify(leaf, intermediates, datetime.fromtimestamp(now, UTC))
            except UnverifiedError as error:
                reasons.append(str(error))
                return None

        def caller(
            kind: CallerKind, chain: Chain, lines: tuple[bytes, ...] = (), refusal: Refusal = Refusal.NONE
        ) -> Caller:
            return Caller(
                kind, subject.common_name, lines, refusal, chain.not_before, chain.not_after, self.generation
            )

        proxy_chain = verify(self.bundles.front_proxy)
        if proxy_chain is not None and subject.common_name in self._speakers:
            return caller(CallerKind.FRONT_PROXY, proxy_chain)
        if proxy_chain is not None and subject.common_name in self._askers:
            return caller(CallerKind.REPORT_ONLY, proxy_chain)
        client_chain = verify(self.bundles.client)
        if client_chain is not None:
            said = self._rules.speak_for(subject, f"X509SHA256={fingerprint}")
            return caller(CallerKind.CERTIFICATE, client_chain, *said)
        if proxy_chain is not None:
            return caller(CallerKind.UNLISTED, proxy_chain)
        raise UnverifiedError("; ".join(dict.fromkeys(reasons)))


def _keep(cache: dict[bytes, _Kept], key: bytes, value: _Kept) -> None:
    """Put a value in at the end, and the oldest out if that is one too many."""
    cache.pop(key, None)
    if len(cache) >= _KEPT_VERDICTS:
        del cache[next(iter(cache))]
    cache[key] = value
