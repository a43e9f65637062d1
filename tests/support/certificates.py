"""Certificates for tests of TLS, made by openssl, where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(directory: Path, name: str, names: str = "") -> tuple[Path, Path]:
    """The files of a certificate that has signed itself, for a name, or for `names` in openssl's words, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make a certificate")
    directory.mkdir(exist_ok=True)
    names = names or f"DNS:{name}"
    certificate, key = directory / "crt", directory / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-out", certificate, "-keyout", key],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
