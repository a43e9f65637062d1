"""Certificates for tests of TLS, made by openssl, where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(directory: Path, name: str) -> tuple[Path, Path]:
    """The files of a certificate that has signed itself, for no machine but a name, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make a certificate")
    certificate, key = directory / "crt", directory / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-out", certificate, "-keyout", key],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
