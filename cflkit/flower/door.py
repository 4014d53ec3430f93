"""The one port that is open to the network: it passes on what a node calls, and nothing else.

    python -m cflkit.flower.door keys

Flower's SuperLink has one port for everything. Whoever reaches it can start runs and register keys,
without a key. So the SuperLink listens on its own machine alone, and this program stands before it.
It passes on the ten calls of a node that has a key, all of which Flower checks by this key.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import click
import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# The calls of Flower's Fleet API, without those by which a node registers itself
CALLS = """activate-node deactivate-node send-node-heartbeat get-run get-fab pull-messages
push-messages pull-object push-object confirm-message-received"""
OF_ONE_CONNECTION = {"host", "connection", "content-length", "transfer-encoding"}


def door(superlink: str, authority: Path) -> Starlette:
    """Return the program that stands before a SuperLink, which an authority vouches for."""
    known = ssl.create_default_context(cafile=authority)
    # A proxy is not on the way to this machine
    client = httpx.AsyncClient(verify=known, timeout=None, trust_env=False)

    async def pass_on(request: Request) -> Response:
        headers = {k: v for k, v in request.headers.items() if k not in OF_ONE_CONNECTION}
        url, content = f"https://{superlink}{request.url.path}", await request.body()
        try:
            answer = await client.post(url, headers=headers, content=content)
        except httpx.TransportError as error:
            return Response(f"the SuperLink does not answer: {error}", 502)
        kind = answer.headers.get("content-type")
        return Response(answer.content, answer.status_code, media_type=kind)

    calls = (Route(f"/v1/fleet/{call}", pass_on, methods=["POST"]) for call in CALLS.split())
    return Starlette(routes=[*calls])


@click.command()
@click.argument("keys", type=click.Path(path_type=Path, exists=True))
@click.option("--superlink", default="127.0.0.1:9000", show_default=True, help="Where it listens.")
@click.option("--host", default="0.0.0.0", show_default=True, help="Where nodes call.")
@click.option("--port", default=8000, show_default=True, help="On which port nodes call.")
def main(keys: Path, superlink: str, host: str, port: int) -> None:
    """Pass on what nodes call to the SuperLink, with the certificates in the folder KEYS."""
    program = uvicorn.Config(door(superlink, keys / "ca.crt"), host, port, log_level="warning")
    program.ssl_certfile, program.ssl_keyfile = keys / "server.crt", keys / "server.key"
    uvicorn.Server(program).run()


if __name__ == "__main__":
    main()
