"""The private CA of a pool: who may join. Keys are files that only their owner can read.

    ca.pem  ca.key          the CA; ca.key stays where the pool was made
    scheduler.pem .key      `weft pool start` shows these, workers `worker.*`, `weft tune --pool` `client.*`
    worker.pem    .key
    client.pem    .key
    device.key              the key that device servers and workers share

Whoever has a certificate of this CA is in the pool; all connections are TLS, and both sides show theirs.
"""

from __future__ import annotations

import datetime
import os
import secrets
import ssl
from pathlib import Path
from typing import Any

import platformdirs

from weft.pool.device import PoolError

ROLES = ("scheduler", "worker", "client")
DAYS = 3650


def default_folder() -> Path:
    """Where the certificates of this user's pool lie, unless somebody says otherwise."""
    return Path(platformdirs.user_config_dir("weft")) / "pool"


def init_pool(folder: Path) -> list[Path]:
    """Makes a CA and the certificates of each role in a folder; a PoolError where there is one already."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if (folder / "ca.pem").exists():
        raise PoolError(
            f"{folder} holds a pool already: remove it to make another, and every certificate of it is void"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = ec.generate_private_key(ec.SECP256R1())
    made = [_write(folder / "ca.key", _text(authority))]
    root = _certificate("weft pool", authority, "weft pool", authority, is_authority=True)
    made.append(_write(folder / "ca.pem", _text(root)))
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(f"weft {role}", key, "weft pool", authority, is_authority=False)
        made.append(_write(folder / f"{role}.key", _text(key)))
        made.append(_write(folder / f"{role}.pem", _text(signed)))
    made.append(_write(folder / "device.key", secrets.token_hex(32).encode()))
    return made


def _write(path: Path, data: bytes) -> Path:
    # Made with its mode: there is no moment in which others could open it.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    return path


def _text(made: Any) -> bytes:
    """A key or a certificate as PEM."""
    from cryptography.hazmat.primitives import serialization as form

    if hasattr(made, "public_bytes"):
        return bytes(made.public_bytes(form.Encoding.PEM))
    return bytes(made.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))


def _certificate(subject: str, key: Any, issuer: str, signer: Any, is_authority: bool) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    def named(text: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.timezone.utc)
    usage = x509.KeyUsage(not is_authority, False, False, False, False, is_authority, is_authority, False, False)
    return (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


def security(folder: Path, role: str) -> Any:
    """Dask's settings for one side of a connection: TLS 1.3, with our certificate, and nobody's without ours."""
    from distributed import Security

    files = {name: folder / name for name in ("ca.pem", f"{role}.pem", f"{role}.key")}
    missing = [name for name, path in files.items() if not path.exists()]
    if missing:
        raise PoolError(
            f"{folder} has no {', '.join(missing)}: `weft pool init` makes them, once for a pool; copy them from there"
        )
    if files[f"{role}.key"].stat().st_mode & 0o077:
        raise PoolError(f"others may read {files[f'{role}.key']}: chmod 600 it")
    ours = {}
    for one in ROLES:
        ours[f"tls_{one}_cert"], ours[f"tls_{one}_key"] = str(files[f"{role}.pem"]), str(files[f"{role}.key"])
    return Security(
        require_encryption=True, tls_ca_file=str(files["ca.pem"]), tls_min_version=ssl.TLSVersion.TLSv1_3, **ours
    )
