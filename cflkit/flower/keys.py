"""Certificates for a server, keys for nodes, and the secret that clients share.

python -m cflkit.flower.keys certificates keys federation.example.org 192.0.2.7
python -m cflkit.flower.keys node hospital-3
python -m cflkit.flower.keys secret clients.secret
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat as Public


def write_certificates(folder: Path, *addresses: str, days: float = 30) -> None:
    """Write ``server.crt`` and ``server.key``, and ``ca.crt`` by which nodes know the server.

    The server's certificate is for the names and the addresses by which nodes reach it, and for
    this machine. It is signed by itself, so that ``ca.crt`` is the same certificate, and it can
    sign no others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, addresses[0])])
    every = dict.fromkeys((*addresses, "localhost", "127.0.0.1"))
    reached = x509.SubjectAlternativeName([*map(as_name, every)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(reached, False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA384())
    )
    for file in ("ca.crt", "server.crt"):
        (folder / file).write_bytes(certificate.public_bytes(Encoding.PEM))
    write_private(folder / "server.key", private_bytes(key, PrivateFormat.PKCS8))


def write_key_pair(path: Path) -> None:
    """Write a node's private key as ``.key``, and its public key as ``.pub``, for Flower."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path.with_name(f"{path.name}.key"), private_bytes(key, PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(Encoding.OpenSSH, Public.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public)


def as_name(address: str) -> x509.GeneralName:
    """Return the name or the number by which a machine is reached, as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def private_bytes(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    """Return a private key as text of a form."""
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def write_secret(path: Path) -> None:
    """Write 256 random bits, which the clients share and the server must not know."""
    write_private(path, secrets.token_hex(32).encode())


def read_secret(path: Path) -> int:
    """Read what `write_secret` has written; a `ValueError` says that it could be guessed."""
    text = path.read_text(encoding="ascii").strip()
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(
            f"{path} has not the 64 digits of a secret that nobody guesses; one client makes it by "
            "'python -m cflkit.flower.keys secret', and gives it to the others"
        )
    return int(text, 16)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.unlink(missing_ok=True)  # one that others can read would stay readable
    path.touch(mode=0o600)
    path.write_bytes(content)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["certificates", path, address, *more]:
            write_certificates(Path(path), address, *more)
        case ["node", path]:
            write_key_pair(Path(path))
        case ["secret", path]:
            write_secret(Path(path))
        case _:
            sys.exit(__doc__)
