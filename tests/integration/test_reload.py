"""Certificates replaced under a running sidecar."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pki import CLIENT, SERVER, Pki
from tests.support.sidecar import Identities, Sidecar, running, upstream

REQUEST = b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n"
SOON = 12.0


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    (tmp_path / "pki").mkdir()
    return Identities.make(tmp_path / "pki")


def linked(folder: Path, identities: Identities) -> dict[str, Any]:
    """The certificate files as a mounted volume shows them: `..data` is a link that is swapped. Gives configuration."""
    first = folder / "..1"
    first.mkdir(parents=True)
    names = {}
    for name, path in {
        "serving.crt": identities.apiserver.cert_file,
        "serving.key": identities.apiserver.key_file,
        "ca.crt": identities.ca.cert_file,
        "front-proxy-ca.crt": identities.front_proxy_ca.cert_file,
        "client.crt": identities.front_proxy_client.cert_file,
        "client.key": identities.front_proxy_client.key_file,
    }.items():
        shutil.copy(path, first / name)
        names[name] = str(folder / "..data" / name)
    (folder / "..data").symlink_to("..1")
    return {
        "listener": {
            "tls": {"certFile": names["serving.crt"], "keyFile": names["serving.key"]},
            "clientCAFile": names["ca.crt"],
        },
        "frontProxy": {"clientCAFile": names["front-proxy-ca.crt"]},
        "upstream": {
            "frontProxyClient": {"certFile": names["client.crt"], "keyFile": names["client.key"]},
        },
    }


def swap(folder: Path, number: int, **files: Path) -> None:
    """Show other files under the same names, as kubelet does: a new folder, then one rename of the link."""
    current = folder / os.readlink(folder / "..data")
    new = folder / f"..{number}"
    shutil.copytree(current, new)
    for name, path in files.items():
        shutil.copy(path, new / name.replace("_", "-").replace("-crt", ".crt").replace("-key", ".key"))
    (folder / "..next").symlink_to(new.name)
    (folder / "..next").rename(folder / "..data")


class Answers:
    """An upstream that answers everything and remembers who called."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.certificates: list[dict[str, Any] | None] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b" /readyz " not in head:  # the sidecar's own probe
                self.heads.append(head)
                self.certificates.append(writer.get_extra_info("peercert"))
            if b"watch=1" in head:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
                await reader.read(1)
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def connect(
    identities: Identities, sidecar: Sidecar, credential: Any = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = identities.client_context(credential)
    return await asyncio.open_connection("127.0.0.1", sidecar.port, ssl=context, server_hostname="kubernetes")


async def status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    writer.write(REQUEST)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
    return int(head.split()[1])


@pytest.mark.parametrize("workers", [1, 2])
async def test_case_23_replaced_certificates_are_used_and_bad_ones_refused(
    identities: Identities, tmp_path: Path, workers: int
) -> None:
    answers = Answers()
    folder = tmp_path / "mounted"
    settings = linked(folder, identities)
    new = Pki(tmp_path / "pki")
    serving = new.leaf(identities.ca, cn="renewed", eku=SERVER, san=["kubernetes"])
    client = new.leaf(identities.front_proxy_ca, cn="front-proxy-client-renewed", eku=CLIENT)
    other_ca = new.ca("other-ca")
    anna = new.leaf(other_ca, cn="anna", eku=CLIENT)
    async with (
        upstream(identities, answers) as port,
        running(identities.configuration(port, workers=workers, **settings), tmp_path) as sidecar,
    ):
        await sidecar.ready()
        jane = await connect(identities, sidecar, identities.jane)
        assert await status(*jane) == 200
        assert b"\r\nX-Remote-User: jane\r\n" in answers.heads[-1]
        watch = await connect(identities, sidecar, identities.jane)
        watch[1].write(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
        await watch[0].readuntil(b"first\r\n")

        # A mismatched pair is refused, and all of the last good files stay in use: the client CA, too.
        swap(folder, 2, serving_crt=serving.cert_file, ca_crt=other_ca.cert_file)
        await sidecar.until(
            lambda: sidecar.metric("orca_sidecar_certificate_reloads_total", result="error") == workers,
            SOON,
        )
        assert "is not the key of" in sidecar.log
        assert await served_name(identities, sidecar) == "kube-apiserver"
        assert await status(*jane) == 200

        # All at once: serving pair, upstream pair, and another client CA.
        swap(
            folder, 3, serving_crt=serving.cert_file, serving_key=serving.key_file,
            client_crt=client.cert_file, client_key=client.key_file, ca_crt=other_ca.cert_file,
        )  # fmt: skip
        await sidecar.until(
            lambda: sidecar.metric("orca_sidecar_certificate_reloads_total", result="ok") == workers, SOON
        )
        assert await served_name(identities, sidecar) == "renewed"
        annas = await connect(identities, sidecar, anna)
        assert await status(*annas) == 200
        assert b"\r\nX-Remote-User: anna\r\n" in answers.heads[-1]
        assert _common_name(answers.certificates[-1]) == "front-proxy-client-renewed"

        # Jane's authority no longer counts, on a connection that is still open; her watch lives on.
        assert await status(*jane) == 401
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch[0].read(1), 0.3)
        for _, writer in (jane, watch, annas):
            writer.transport.abort()


def _common_name(certificate: dict[str, Any] | None) -> str:
    assert certificate
    return str(dict(pair for rdn in certificate["subject"] for pair in rdn)["commonName"])


async def served_name(identities: Identities, sidecar: Sidecar) -> str:
    """The common name of the certificate that a new connection is shown."""
    _, writer = await connect(identities, sidecar)
    name = _common_name(writer.get_extra_info("peercert"))
    writer.transport.abort()
    return name


def ask_once(
    context: ssl.SSLContext, port: int, session: ssl.SSLSession | None
) -> tuple[bool, ssl.SSLSession | None]:
    """One request on a new connection: whether its handshake was resumed, and the ticket to resume it with."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        context.wrap_socket(raw, server_hostname="kubernetes", session=session) as sock,
    ):
        sock.sendall(REQUEST)
        answer = b""
        while not answer.endswith(b"ok"):
            piece = sock.recv(65536)
            assert piece, answer
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 ")
        return bool(sock.session_reused), sock.session


async def test_what_becomes_of_session_tickets(identities: Identities, tmp_path: Path) -> None:
    """All workers take one another's tickets, and a worker that takes the place of one that died does. A reload ends that:
    no old ticket is resumed, and of the new ones those that meet the worker that gave them."""
    folder = tmp_path / "mounted"
    settings = linked(folder, identities)
    serving = Pki(tmp_path / "pki").leaf(identities.ca, cn="renewed", eku=SERVER, san=["kubernetes"])
    context = identities.client_context(identities.jane)
    async with (
        upstream(identities, Answers()) as port,
        running(identities.configuration(port, workers=2, **settings), tmp_path) as sidecar,
    ):
        await sidecar.ready()

        async def ask(session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
            return await asyncio.to_thread(ask_once, context, sidecar.port, session)

        _, ticket = await ask(None)
        assert [(await ask(ticket))[0] for _ in range(20)] == [True] * 20

        _, first, second = psutil.Process(sidecar.process.pid).children()
        os.kill(first.pid, signal.SIGKILL)
        await sidecar.until(
            lambda: len(psutil.Process(sidecar.process.pid).children()) == 3 and not first.is_running(), SOON
        )
        os.kill(second.pid, signal.SIGSTOP)  # so that the new one has to answer
        try:
            assert [(await ask(ticket))[0] for _ in range(5)] == [True] * 5
        finally:
            os.kill(second.pid, signal.SIGCONT)

        swap(folder, 2, serving_crt=serving.cert_file, serving_key=serving.key_file)
        await sidecar.until(
            lambda: sidecar.metric("orca_sidecar_certificate_reloads_total", result="ok") == 2, SOON
        )
        assert [(await ask(ticket))[0] for _ in range(20)] == [False] * 20
        for _ in range(20):  # each is answered, resumed or not
            _, ticket = await ask(ticket)
