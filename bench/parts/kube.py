"""The same at a real kube-apiserver: what the sidecar adds to a GET, beside what kube-apiserver itself spends on it, and
what a watch costs kube-apiserver, direct and through a proxy."""

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.harness.accounting import rss_bytes
from bench.harness.kube import ADMIN_TOKEN
from bench.harness.loadgen import Load
from bench.harness.pki import SERVER_NAME
from bench.harness.preflight import ask
from bench.harness.process import BenchError, running
from bench.harness.traffic import GET_2K, KUBE_WATCH
from bench.harness.trial import DIRECT, DIRECT_HTTP2, Scenario, Trial

WATCHES = 1_000
_RATE = 200
_SECONDS = 8.0
_OPEN_DEADLINE = 60.0
_SCOPE = 'scope="namespace"'  # its own watches of ConfigMaps are of other scopes


def _closed(trial: Trial) -> Mapping[str, float]:
    apiserver = trial.upstream.pid
    with trial.load("closed", GET_2K, connections=16, warm_up=2_000, requests=8_000) as load:
        load.ready()
        with trial.window(apiserver) as window:
            result = load.run()
    return {
        "apiserverCpuMicroseconds": window.cpu_ns_by_pid[apiserver] / 1e3 / result.responses,
        "cpuMicroseconds": window.cpu_ns / 1e3 / result.responses,
        "requestsPerSecond": result.responses / result.seconds,
    }


def _open(trial: Trial) -> Mapping[str, float]:
    with trial.load("open", GET_2K, connections=16, warm_up=2_000, rate=_RATE, duration=_SECONDS) as load:
        load.ready()
        with trial.window():
            result = load.run()
    return {"p50Microseconds": result.p50, "p99Microseconds": result.p99}


def _watches(trial: Trial) -> Mapping[str, float]:
    """A fresh kube-apiserver: its memory does not shrink when watches end."""
    apiserver = trial.upstream.pid
    time.sleep(2.0)  # the work that follows a start
    before = rss_bytes([apiserver])
    with trial.window(apiserver) as window, _held(trial):
        time.sleep(1.0)
        during = rss_bytes([apiserver])
    figures = {
        "apiserverKilobytesPerWatch": (during - before) / 1024 / WATCHES,
        "apiserverCpuMicroseconds": window.cpu_ns_by_pid[apiserver] / 1e3 / WATCHES,
    }
    if trial.subject != DIRECT_HTTP2:
        time.sleep(1.0)
        with trial.window(), _reconnecting(trial) as load:
            load.ready()
            figures["reconnectSeconds"] = load.run().open_seconds
    return figures


def _reconnecting(trial: Trial) -> contextlib.AbstractContextManager[Load]:
    """No reports are asked for: a kube-apiserver that is too busy to answer the probe has none."""
    return trial.load("watch", KUBE_WATCH, reports=False, connections=WATCHES, opening=WATCHES)


@contextlib.contextmanager
def _held(trial: Trial) -> Iterator[None]:
    if trial.subject == DIRECT_HTTP2:
        with _held_over_http2(trial):
            yield
        return
    with trial.load("watch", KUBE_WATCH, reports=False, connections=WATCHES) as load:
        load.ready()
        yield
        load.run()


@contextlib.contextmanager
def _held_over_http2(trial: Trial) -> Iterator[None]:
    """h2load has no client certificates: it speaks as the holder of a bearer token."""
    if shutil.which("h2load") is None:
        raise BenchError("h2load is not installed: apt-get install nghttp2-client")
    command: list[str | Path] = ["h2load", "-n", str(WATCHES), "-c", "10", "-m", "100", "-T", "120"]
    command += ["-H", f"authorization: Bearer {ADMIN_TOKEN}"]
    with running("h2load", [*command, f"https://127.0.0.1:{trial.port}{KUBE_WATCH}"], trial.folder) as h2load:
        deadline = time.monotonic() + _OPEN_DEADLINE
        while (held := _watches_held(trial)) < WATCHES:
            h2load.pids()  # raises where it ended
            if time.monotonic() > deadline:
                raise BenchError(f"only {held} watches are open over HTTP/2: {h2load.tail()}")
            time.sleep(0.3)
        yield


def _watches_held(trial: Trial) -> int:
    """Of ConfigMaps, by kube-apiserver's own count."""
    request = f"GET /metrics HTTP/1.1\nHost: {SERVER_NAME}\nAuthorization: Bearer {ADMIN_TOKEN}\n"
    answer = ask(trial.upstream.port, trial.upstream.pki.ca, None, request)
    for line in answer.body.decode().splitlines():
        name, _, labels = line.partition("{")
        if (
            name == "apiserver_longrunning_requests"
            and 'resource="configmaps"' in labels
            and _SCOPE in labels
        ):
            return int(float(line.rpartition(" ")[2]))
    return 0


def kube(quick: bool) -> list[Scenario]:
    if quick:
        return []
    return [
        Scenario(
            name="kube-get",
            title="a real kube-apiserver: GET of a 2 KB ConfigMap, 16 connections, closed loop",
            subjects=(DIRECT, "envoy", "sidecar"),
            trial=_closed,
            unit="CPU µs per request",
            upstream="kube-apiserver",
        ),
        Scenario(
            name="kube-latency",
            title=f"a real kube-apiserver: {_RATE} requests/s, open loop, 16 connections",
            subjects=(DIRECT, "envoy", "sidecar"),
            trial=_open,
            unit="µs",
            upstream="kube-apiserver",
        ),
        Scenario(
            name="kube-watches",
            title=f"a real kube-apiserver: {WATCHES} idle watches, then all of them reconnecting at once",
            subjects=(DIRECT_HTTP2, DIRECT, "envoy", "sidecar"),
            trial=_watches,
            unit="kube-apiserver's RSS in KB per watch",
            upstream="kube-apiserver",
            repeats=1,
        ),
    ]
