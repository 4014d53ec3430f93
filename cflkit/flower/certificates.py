"""Certificates for a server, and keys for nodes, with which Flower's processes trust each other."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def write_certificates(folder: Path, names: Sequence[str], addresses: Sequence[str]) -> None:
    """Write ``server.crt`` and ``server.key``, and ``ca.crt`` by which nodes know the server.

    The server's certificate is for the names and the addresses by which nodes reach it. It is
    signed by itself, so that ``ca.crt`` is the same certificate, and it can sign no others.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    now = datetime.datetime.now(datetime.UTC)
    ips = (x509.IPAddress(ipaddress.ip_address(address)) for address in addresses)
    reached = x509.SubjectAlternativeName([*map(x509.DNSName, names), *ips])
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(reached, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    for file in ("ca.crt", "server.crt"):
        (folder / file).write_bytes(certificate.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(folder / "server.key", private)


def write_key_pair(path: Path) -> None:
    """Write a node's private key, and its public key as ``.pub``, as Flower reads them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_private(path.with_name(f"{path.name}.key"), private)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.unlink(missing_ok=True)  # one that others can read would stay readable
    path.touch(mode=0o600)
    path.write_bytes(content)
