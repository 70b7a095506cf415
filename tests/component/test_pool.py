"""The pools of upstream connections: warm, bounded, replaced in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import Proxy, echo_ok, eventually, proxy, request, response
from tests.support.sidecar import Identities

WARM = {"minIdleConnections": 3, "maxIdleConnections": 5, "idleTimeout": "60s"}


def sweep(it: Proxy) -> None:
    for pool in it.plane.pools:
        pool.sweep(time.monotonic_ns())


async def warm(it: Proxy) -> None:
    await eventually(lambda: all(len(pool._idle) == 3 for pool in it.plane.pools))


async def test_both_are_warm_from_the_start(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path, echo_ok, upstream=WARM) as it:
        await warm(it)
        await eventually(lambda: len(it.upstream.connections) == 6)
        assert sorted(w.tls.getpeercert(binary_form=True) is not None for w in it.upstream.connections) == [
            *[False] * 3,
            *[True] * 3,
        ]
        client = await it.connect()
        for _ in range(5):
            await client.send(request())
            await client.message(b"GET")
        assert len(it.upstream.connections) == 6  # the one used last is used next
        sweep(it)
        assert it.count(metrics.UPSTREAM_CONNECTIONS, "plain", "idle") == 3
        assert it.count(metrics.UPSTREAM_CONNECTIONS, "front_proxy", "idle") == 3


async def test_one_that_never_sent_a_request_is_replaced_before_32_seconds(
    identities: Identities, tmp_path: Path, monotonic: Callable[[float], None]
) -> None:
    async with proxy(identities, tmp_path, echo_ok, upstream=WARM) as it:
        await warm(it)
        client = await it.connect()
        await client.send(request())
        await client.message(b"GET")
        first = {connection for pool in it.plane.pools for connection in pool.all}
        used = next(connection for connection in first if connection.used)
        monotonic(26.0)
        sweep(it)
        await warm(it)
        assert {connection for pool in it.plane.pools for connection in pool.all} & first == {used}
        monotonic(35.0)
        sweep(it)
        assert used not in it.plane.pools[0].all


async def test_no_more_are_kept_idle_than_configured(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path, upstream=WARM) as it:
        await warm(it)
        clients = [await it.connect() for _ in range(9)]
        for client in clients:
            await client.send(request())
        await eventually(lambda: len(it.plane.pools[0].all) == 9)
        answered = set()
        while len(answered) < 9:
            upstream = await it.upstream.next()
            if upstream.tls.getpeercert(binary_form=True) is None:
                await upstream.message()
                await upstream.send(response())
                answered.add(upstream.number)
        for client in clients:
            await client.message(b"GET")
        assert len(it.plane.pools[0]._idle) == 5


@pytest.mark.parametrize("how", ["close", "cut", "reset"])
async def test_a_warm_one_that_dies_under_its_first_request(
    identities: Identities, tmp_path: Path, how: str
) -> None:
    """It died of its age, as one that was used may: a read is sent again, a write is not."""
    async with proxy(identities, tmp_path, upstream={**WARM, "minIdleConnections": 1}) as it:
        await eventually(lambda: all(len(pool._idle) == 1 for pool in it.plane.pools))
        for data, code in ((request(method=b"PUT", body=b"x"), b"502"), (request(), b"200")):
            client = await it.connect()
            await client.send(data)
            while True:
                upstream = await it.upstream.next()
                if upstream.tls.getpeercert(binary_form=True) is None:
                    break
            await upstream.message()
            ending = getattr(upstream, how)()
            if ending is not None:
                await ending
            if code == b"200":
                fresh = await it.upstream.next()
                await fresh.message()
                await fresh.send(response())
            head, _ = await client.message(b"GET")
            assert head.split(b" ")[1] == code
            sweep(it)
            await eventually(lambda: len(it.plane.pools[0]._idle) >= 1)


async def test_it_comes_back_by_itself(identities: Identities, tmp_path: Path) -> None:
    """kube-apiserver was restarted: no connection of before is used, and the pools are warm again."""
    async with proxy(identities, tmp_path, echo_ok, upstream=WARM) as it:
        await warm(it)
        await it.upstream.drop()
        await eventually(lambda: not any(pool.all for pool in it.plane.pools))
        sweep(it)
        await warm(it)
        client = await it.connect()
        await client.send(request(method=b"POST", body=b"x"))
        assert (await client.message(b"POST"))[1] == b"ok"
