"""Keys for nodes, and the secret that clients share, each in a file of its own.

python -m cflkit.flower.keys node hospital-3
python -m cflkit.flower.keys secret clients.secret
"""

import secrets
import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization as form
from flwr.supercore.primitives.asymmetric import generate_key_pairs


def write_key_pair(path: Path) -> None:
    """Write a node's private key as ``.key``, and its public key as ``.pub``, for Flower."""
    private, public = generate_key_pairs()
    pem, openssh = form.Encoding.PEM, form.Encoding.OpenSSH
    key = private.private_bytes(pem, form.PrivateFormat.OpenSSH, form.NoEncryption())
    private_file(path.with_name(f"{path.name}.key")).write_bytes(key)
    known = public.public_bytes(openssh, form.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(known)


def write_secret(path: Path) -> None:
    """Write 256 random bits, which the clients share and the server must not know."""
    private_file(path).write_text(secrets.token_hex(32))


def read_secret(path: Path) -> int:
    """Read what `write_secret` has written; a `ValueError` says that it could be guessed."""
    text = path.read_text(encoding="ascii").strip()
    if len(text) != 64:
        how = "python -m cflkit.flower.keys secret"
        raise ValueError(f"{path} has not the 64 digits of a secret, which '{how}' makes")
    return int(text, 16)


def private_file(path: Path) -> Path:
    """Make an empty file that only its owner can read, in place of any other; return its path."""
    path.unlink(missing_ok=True)  # one that others can read would stay readable
    path.touch(mode=0o600)
    return path


if __name__ == "__main__":
    makers = {"node": write_key_pair, "secret": write_secret}
    if len(sys.argv) != 3 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    makers[sys.argv[1]](Path(sys.argv[2]))
