"""The proxies that are compared, each configured for the same job: mTLS downstream, TLS with a client certificate
upstream, keep-alive pools, one request header removed, two response headers removed, one added."""

from bench.peers.envoy import ENVOY
from bench.peers.haproxy import HAPROXY
from bench.peers.job import Peer
from bench.peers.mitmproxy import MITMPROXY
from bench.peers.nginx import NGINX
from bench.peers.plain_aiohttp import AIOHTTP, AIOHTTP_UVLOOP
from bench.peers.sidecar import SIDECAR

PEERS: dict[str, Peer] = {
    peer.name: peer for peer in (ENVOY, HAPROXY, NGINX, AIOHTTP, AIOHTTP_UVLOOP, MITMPROXY, SIDECAR)
}
