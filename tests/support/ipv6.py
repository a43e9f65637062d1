"""Tests that need an address of IPv6."""

import socket

import pytest


def _why_not() -> str:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return ""
    except OSError as error:
        return f"this machine has no address of IPv6: {error}"


needs_ipv6 = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
