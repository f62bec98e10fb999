"""Certificates for tests, made by the openssl command: an authority, and what it has signed."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """Paths of two PEM files."""

    certificate: Path
    key: Path


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)


def self_signed(folder: Path, name: str, *, password: str = "") -> Certificate:
    """A certificate for 127.0.0.1 that vouches for itself; with a password its key is encrypted."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    encryption = ("-passout", f"pass:{password}") if password else ("-nodes",)
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *encryption, "-days", "2"),
        *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", made.key, "-out", made.certificate),
    )
    return made
