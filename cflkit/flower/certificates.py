"""Certificates for a server, and keys for nodes, with which Flower's processes trust each other."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_certificates(folder: Path, names: Sequence[str], addresses: Sequence[str]) -> None:
    """Write an authority (``ca.crt``), and a server's certificate and key signed by it.

    Parameters
    ----------
    folder : Path
        The folder; it gets ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``.
    names, addresses : sequence of str
        The names and the addresses by which nodes reach the server.
    """
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cflkit demonstration")])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=30))
        )

    own = (
        builder(issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA384())
    )
    reached = [
        *map(x509.DNSName, names),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ]
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    signed = (
        builder(subject, server.public_key())
        .add_extension(x509.SubjectAlternativeName(reached), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority, hashes.SHA384())
    )
    for name, certificate, key in (("ca", own, authority), ("server", signed, server)):
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_private_key(folder / f"{name}.key", key)


def write_key_pair(path: Path) -> None:
    """Write a node's private key, and its public key as ``.pub``, as Flower reads them."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private_key(path.with_name(f"{path.name}.key"), key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_name(f"{path.name}.pub").write_bytes(public)


def write_private_key(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> None:
    """Write a private key that only its owner can read."""
    path.unlink(missing_ok=True)  # one that others can read would stay readable
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )
