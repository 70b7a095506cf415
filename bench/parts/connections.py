"""New mTLS connections: a dial, a handshake with client certificates, one GET of 2 KB, a close."""

from collections.abc import Callable, Mapping

from bench.harness.pki import KeyKind
from bench.harness.process import BenchError
from bench.harness.traffic import BODY_BYTES, GET_2K
from bench.harness.trial import Scenario, Trial
from bench.parts.requests import FAST

_TITLES: dict[KeyKind, str] = {"rsa2048": "RSA 2048", "p256": "P-256"}


def _connections(reuse: str, count: int) -> Callable[[Trial], Mapping[str, float]]:
    def trial(trial: Trial) -> Mapping[str, float]:
        requests = trial.scaled(count)
        with trial.load(
            "closed",
            GET_2K,
            reuse=reuse,
            connections=8,
            warm_up=100,
            requests=requests,
            length=BODY_BYTES[GET_2K],
        ) as load:
            load.ready()
            with trial.window() as window:
                result = load.run()
        expected = result.handshakes if reuse == "resumed" else 0
        if result.resumed != expected:
            raise BenchError(
                f"{result.resumed} of {result.handshakes} handshakes were resumed, not {expected}"
            )
        return {
            "cpuMicroseconds": window.cpu_ns / 1e3 / result.responses,
            "connectionsPerSecond": result.responses / result.seconds,
            "p50Microseconds": result.p50,
            "p99Microseconds": result.p99,
        }

    return trial


def connections(quick: bool) -> list[Scenario]:
    if quick:
        return []
    return [
        Scenario(
            name=f"connect-{kind}-{handshake}",
            title=f"new mTLS connection and one GET, {_TITLES[kind]}, {handshake} handshake",
            subjects=FAST,
            trial=_connections("new" if handshake == "full" else "resumed", 1_500),
            unit="CPU µs per connection",
            keys=kind,
        )
        for kind in ("rsa2048", "p256")
        for handshake in ("full", "resumed")
    ]
