"""Who listens at a port, as Linux tells it in two ways."""

import os
import socket
import sys

import pytest

from penstock.service.transport import listeners
from penstock.service.transport.listeners import ask_netlink, read_tables, users_listening

NOBODY = 65534

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
@pytest.mark.parametrize("look", [ask_netlink, read_tables])
def test_both_ways_tell_the_user_of_a_port_while_it_listens(
    look: object, family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "ask_netlink", look)
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert users_listening(port) == {os.getuid()}
        with socket.create_connection((host, port)) as line:
            assert users_listening(line.getsockname()[1]) == set()  # it is connected, and does not listen
        if os.getuid() == 0:
            os.fchown(listener.fileno(), NOBODY, NOBODY)
            assert users_listening(port) == {NOBODY}
    assert users_listening(port) == set()


def test_the_files_are_read_where_netlink_is_kept_from_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_NETLINK_SOCK_DIAG", 31)  # there is no such protocol
    with pytest.raises(OSError, match="Protocol not supported"):
        list(ask_netlink())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert users_listening(listener.getsockname()[1]) == {os.getuid()}


def test_what_netlink_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_SOCK_DIAG_BY_FAMILY", 99)
    with pytest.raises(OSError, match="Invalid argument"):
        list(ask_netlink())


def test_what_netlink_cannot_tell_is_an_error_and_not_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_PROTOCOL", socket.IPPROTO_ICMP)  # as where the kernel's part for TCP is missing
    with pytest.raises(OSError, match="No such file or directory"):
        list(ask_netlink())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert users_listening(listener.getsockname()[1]) == {os.getuid()}
