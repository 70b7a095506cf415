"""A plain reverse proxy of aiohttp's own parts, `web.Application` in front of a `ClientSession`, as it is commonly
written: every body streamed, nothing tuned but the limits that this traffic would break. A program of its own;
the bench runs it on asyncio's loop and on uvloop.
"""

import argparse
import asyncio
import ssl

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})


class Proxy:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._not_sent = HOP_BY_HOP | {arguments.opt_in}
        self._not_returned = HOP_BY_HOP | {arguments.report, arguments.report_binary}
        self._session: ClientSession | None = None

    async def session(self, _app: web.Application) -> None:
        context = ssl.create_default_context(cafile=self._arguments.ca)
        context.load_cert_chain(self._arguments.client_pair)
        self._session = ClientSession(
            connector=TCPConnector(ssl=context, limit=0, keepalive_timeout=3600),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            timeout=ClientTimeout(total=None),
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        url = URL(f"https://127.0.0.1:{self._arguments.upstream_port}{request.raw_path}", encoded=True)
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in self._not_sent
        )
        async with self._session.request(
            request.method,
            url,
            headers=headers,
            data=request.content if request.body_exists else None,
            allow_redirects=False,
            server_hostname=self._arguments.server_name,
        ) as upstream:
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
            for name, value in upstream.headers.items():
                if name.lower() not in self._not_returned:
                    response.headers.add(name, value)
            response.headers.add(self._arguments.report, self._arguments.constant)
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    async def close(self, _app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), required=True)
    for name in ("port", "upstream-port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("serving-pair", "client-ca", "client-pair", "ca", "server-name", "opt-in", "report"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--report-binary", required=True)
    parser.add_argument("--constant", required=True)
    arguments = parser.parse_args()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=arguments.client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(arguments.serving_pair)
    proxy = Proxy(arguments)
    app = web.Application(handler_args={"max_line_size": 32768, "max_field_size": 32768})
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    app.on_startup.append(proxy.session)
    app.on_cleanup.append(proxy.close)
    loop = uvloop.new_event_loop() if arguments.loop == "uvloop" else asyncio.new_event_loop()
    web.run_app(
        app,
        host="127.0.0.1",
        port=arguments.port,
        ssl_context=context,
        access_log=None,
        keepalive_timeout=3600,
        backlog=4096,
        loop=loop,
        print=lambda *_: None,
    )


if __name__ == "__main__":
    main()
