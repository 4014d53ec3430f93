"""Start a server: Flower's SuperLink, and before it a door, the one port that the network reaches.

    python -m cflkit.flower.server server federation.example.org 192.0.2.7

Flower's SuperLink has one port for everything. Whoever reaches it can start runs and register keys,
without a key. So the SuperLink listens on its own machine alone, and a door stands before it. It
passes on the ten calls of a node that has a key, all of which Flower checks by this key.
"""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

HOST = "127.0.0.1"
# The calls of Flower's Fleet API, without those by which a node registers itself
CALLS = """activate-node deactivate-node send-node-heartbeat get-run get-fab pull-messages
push-messages pull-object push-object confirm-message-received"""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("addresses", nargs=-1, required=True)
@click.option("--host", default="0.0.0.0", show_default=True, help="Where nodes call.")
@click.option("--port", default=8000, show_default=True, help="On which port nodes call.")
def main(folder: Path, addresses: tuple[str, ...], host: str, port: int) -> None:
    """Start a SuperLink and the door before it, which nodes reach by these ADDRESSES.

    FOLDER gets the server's certificate and its key, unless they are there already, and the
    configuration by which the command flwr finds the SuperLink.
    """
    certificate, key, link = folder / "server.crt", folder / "server.key", free_port()
    if not certificate.exists():
        write_certificate(certificate, key, *addresses)
    known = f'address = "{HOST}:{link}"\nroot-certificates = "{certificate.resolve()}"\n'
    (folder / "config.toml").write_text(f"[superlink.federation]\n{known}", encoding="utf-8")
    tls = "--ssl-ca-certfile", certificate, "--ssl-certfile", certificate, "--ssl-keyfile", key
    alone = "--enable-supernode-auth", "--disable-runtime-dependency-installation", "--host", HOST
    program = Path(sys.executable).with_name("flower-superlink"), "--port", str(link)
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the SuperLink ends, too
    with subprocess.Popen([*program, *tls, *alone]) as superlink:
        try:
            while not answers(link) and superlink.poll() is None:
                time.sleep(0.2)
            options: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key}
            options |= {"host": host, "port": port, "log_level": "warning"}
            uvicorn.run(door(link, certificate), **options)
        finally:
            superlink.terminate()


def write_certificate(certificate: Path, key: Path, *addresses: str) -> None:
    """Let OpenSSL make a server's certificate, by which nodes know the server, and its key.

    It is valid for 30 days, for the names and addresses by which nodes reach the server, and for
    this machine. It is signed by itself, and can sign no others.
    """
    certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kinds = {name: "IP" if re.fullmatch("[0-9.]+|.*:.*", name) else "DNS" for name in addresses}
    kinds |= {"localhost": "DNS", HOST: "IP"}
    reached = ",".join(f"{kind}:{name}" for name, kind in kinds.items())
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days 30"
    about = ["-subj", f"/CN={addresses[0]}", "-addext", f"subjectAltName={reached}"]
    about += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*make.split(), *about, "-keyout", key, "-out", certificate], check=True)


def door(link: int, certificate: Path) -> Starlette:
    """Return the program that stands before the SuperLink at a port, which has this certificate."""
    known = ssl.create_default_context(cafile=certificate)
    # A proxy is not on the way to this machine
    client = httpx.AsyncClient(verify=known, timeout=None, trust_env=False)

    async def pass_on(request: Request) -> Response:
        url, content = f"https://{HOST}:{link}{request.url.path}", await request.body()
        try:
            answer = await client.post(url, headers=request.headers, content=content)
        except httpx.TransportError as error:
            return Response(f"the SuperLink does not answer: {error}", 502)
        kind = answer.headers.get("content-type")
        return Response(answer.content, answer.status_code, media_type=kind)

    calls = (Route(f"/v1/fleet/{call}", pass_on, methods=["POST"]) for call in CALLS.split())
    return Starlette(routes=[*calls])


def free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.create_server((HOST, 0)) as listening:
        return int(listening.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether a process of this machine listens on a port."""
    with socket.socket() as caller:
        return caller.connect_ex((HOST, port)) == 0


if __name__ == "__main__":
    main()
