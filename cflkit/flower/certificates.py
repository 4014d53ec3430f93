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
    """Write ``ca.crt``, the certificate of an authority, and ``server.crt`` and ``server.key``.

    The authority signs for the names and the addresses by which nodes reach the server. Its key is
    not kept.
    """
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    now = datetime.datetime.now(datetime.UTC)
    # From Python 3.13 on, certificates need these: who signs, and that it may sign certificates
    signer = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    signs = x509.KeyUsage(False, False, False, False, False, True, False, False, False)
    ips = (x509.IPAddress(ipaddress.ip_address(address)) for address in addresses)
    reached = x509.SubjectAlternativeName([*map(x509.DNSName, names), *ips])

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    def write(
        file: str, name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> None:
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("cflkit demonstration"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=30))
        )
        for extension in extensions:
            must = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical=must)
        certificate = builder.sign(authority, hashes.SHA384())
        (folder / file).write_bytes(certificate.public_bytes(Encoding.PEM))

    whole, leaf = x509.BasicConstraints(True, 0), x509.BasicConstraints(False, None)
    write("ca.crt", "cflkit demonstration", authority, whole, signs, signer)
    own = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer)
    write("server.crt", names[0], server, leaf, reached, own)
    private = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
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
