"""Small servers that stand behind kube-apiserver: an aggregated API, and what a pod's ports lead to."""

from __future__ import annotations

import hashlib
import json
import socketserver
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.e2e.processes import Started
from tests.pki import Credential

GROUP, VERSION = "e2e.orca-sidecar.dev", "v1alpha1"
API = f"/apis/{GROUP}/{VERSION}"


class _Serving(Started):
    """A server on a thread of its own."""

    server: socketserver.BaseServer

    def wait_ready(self) -> None:
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class ExtensionServer(_Serving):
    """An aggregated API over TLS that tells the header lines it sees and, itself, a load."""

    def __init__(self, certificate: Credential) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _ExtensionHandler)
        self.port = self.server.server_address[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert_file, certificate.key_file)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class _ExtensionHandler(_Quiet):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == API:
            self._answer(
                {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": f"{GROUP}/{VERSION}",
                    "resources": [{"name": "echoes", "kind": "Echo", "namespaced": False, "verbs": ["get"]}],
                }
            )
        elif path == f"{API}/echoes/headers":
            self._answer([line for line in self.headers.items() if line[0].lower().startswith("x-remote-")])
        elif path == f"{API}/echoes":
            self._answer_in_chunks()
        else:
            self._answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}, 404)

    def _say_load(self) -> None:
        self.send_header("Endpoint-Load-Metrics", "TEXT cpu_utilization=0.9, rps_fractional=1")
        self.send_header("endpoint-load-metrics", "JSON {}")
        self.send_header("Endpoint-Load-Metrics-Bin", "AAAA")
        self.send_header("Endpoint-Load-Metrics-Json", "{}")

    def _answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Own", "1")
        self._say_load()
        self.send_header("X-Own", "2")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer_in_chunks(self) -> None:
        self.send_response_only(200)
        self.send_header("Content-Type", "text/plain")  # else Go guesses, from as much as has come by then
        self._say_load()
        self.send_header("Trailer", "X-Sum, Endpoint-Load-Metrics, Endpoint-Load-Metrics-Bin")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (b"one", b"two", b"three"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(
            b"0\r\nX-Sum: 11\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.9, rps_fractional=1\r\n"
            b"endpoint-load-metrics-bin: AAAA\r\n\r\n"
        )


class HttpBackend(_Serving):
    """Answers a GET with its path, and a POST with its body, over HTTP."""

    def __init__(self, port: int) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", port), _EchoHandler)


class _EchoHandler(_Quiet):
    def do_GET(self) -> None:
        self._answer(self.path.encode())

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class RawBackend(_Serving):
    """Takes `size` bytes, answers with their SHA-256 in hex, sends the same bytes back and closes."""

    def __init__(self, port: int, size: int) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                data = self.rfile.read(size)
                self.wfile.write(hashlib.sha256(data).hexdigest().encode())
                self.wfile.write(data)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self.server = Server(("127.0.0.1", port), Handler)
