"""Start a server: Flower's SuperLink, with a door at the one port that the network reaches.

    python -m cflkit.flower.server server federation.example.org 192.0.2.7

Flower's SuperLink answers everything at one port. Whoever reaches it can start runs and register
keys, without a key. So here it has two ports. One is for this machine alone. The other one is for
the network, and the door there lets in the ten calls of a node that has a key, and no others.
Flower checks each of them by this key.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

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
    """Start a SuperLink with a door, which nodes reach by these ADDRESSES.

    FOLDER gets the server's certificate and its key, unless they are there already, and the
    configuration by which the command flwr finds the SuperLink.
    """
    certificate, key = folder / "server.crt", folder / "server.key"
    if not certificate.exists():
        write_certificate(certificate, key, *addresses)
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    # Only here, since Flower looks at the environment when it is imported
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.cli.flower_superlink import _parse_superlink_lifespan_config as configured
    from flwr.superlink.main import create_app

    inside = socket.create_server((HOST, 0))
    link = inside.getsockname()[1]
    tls = "--ssl-ca-certfile", certificate, "--ssl-certfile", certificate, "--ssl-keyfile", key
    options = "--enable-supernode-auth", "--disable-runtime-dependency-installation", "--port", link
    sys.argv[1:] = map(str, [*tls, *options])  # where `configured` looks for them
    superlink = create_app(configured(), SuperLinkLifespan)
    files: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key}
    outside = uvicorn.Config(door(superlink, link), host, port, log_level="warning", **files)
    sockets = outside.bind_socket(), inside
    # Written last: whoever finds it finds a SuperLink that answers
    known = f'address = "{HOST}:{link}"\nroot-certificates = "{certificate.resolve()}"\n'
    (folder / "config.toml").write_text(f"[superlink.federation]\n{known}", encoding="utf-8")
    uvicorn.Server(outside).run([*sockets])


def door(superlink: ASGIApp, link: int) -> ASGIApp:
    """Return a SuperLink that answers nodes' calls alone, but for those at the port ``link``."""
    calls = {f"/v1/fleet/{call}" for call in CALLS.split()}

    async def program(scope: Scope, receive: Receive, send: Send) -> None:
        inside = scope["type"] == "lifespan" or scope["server"][1] == link
        passes = inside or (scope["type"] == "http" and scope["path"] in calls)
        await (superlink if passes else Response(status_code=404))(scope, receive, send)

    return program


def write_certificate(certificate: Path, key: Path, *addresses: str) -> None:
    """Let OpenSSL make a server's certificate, by which nodes know the server, and its key.

    It is valid for 30 days, for the names and addresses by which nodes reach the server, and for
    this machine. It is signed by itself, and can sign no others.
    """
    certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = dict.fromkeys((*addresses, "localhost", HOST))
    reached = ",".join(f"{'IP' if re.fullmatch('[0-9.]+|.*:.*', n) else 'DNS'}:{n}" for n in names)
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days 30"
    about = ["-subj", f"/CN={addresses[0]}", "-addext", f"subjectAltName={reached}"]
    about += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*make.split(), *about, "-keyout", key, "-out", certificate], check=True)


def free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.create_server((HOST, 0)) as listening:
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    main()
