"""Who listens at a port is told alike by Linux's two ways of telling it."""

import os
import socket
import sys

import pytest

from penstock.service.security import listeners
from penstock.service.security.listeners import ask_netlink, read_tables, users_listening

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
        assert users_listening(host, port) == {os.getuid()}
        with socket.create_connection((host, port)) as line:
            assert users_listening(host, line.getsockname()[1]) == set()  # it is connected, and does not listen
        if os.getuid() == 0:
            os.fchown(listener.fileno(), NOBODY, NOBODY)
            assert users_listening(host, port) == {NOBODY}
    assert users_listening(host, port) == set()


@pytest.mark.parametrize("look", [ask_netlink, read_tables])
@pytest.mark.parametrize(
    ("listening", "reached", "not_reached"),
    [
        ("127.0.0.2", ["127.0.0.2", "::ffff:127.0.0.2"], ["127.0.0.1", "::1"]),
        ("::1", ["::1"], ["127.0.0.1"]),
        ("::", ["::1", "127.0.0.1", "127.0.0.2"], []),
        ("0.0.0.0", ["127.0.0.1", "127.0.0.2"], ["::1"]),
    ],
)
def test_who_listens_is_told_by_the_address_that_is_connected_to(
    look: object, listening: str, reached: list[str], not_reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "ask_netlink", look)
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    with socket.create_server((listening, 0), family=family, dualstack_ipv6=listening == "::") as listener:
        port = listener.getsockname()[1]
        assert [users_listening(host, port) for host in reached] == [{os.getuid()}] * len(reached)
        assert [users_listening(host, port) for host in not_reached] == [set()] * len(not_reached)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a socket away")
def test_the_socket_at_the_address_itself_gets_what_comes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        with socket.create_server(("::", port), family=socket.AF_INET6) as theirs:  # IPv6 alone
            os.fchown(theirs.fileno(), NOBODY, NOBODY)
            assert users_listening("127.0.0.1", port) == {0}
            assert users_listening("::1", port) == {NOBODY}


def test_the_files_are_read_where_netlink_is_kept_from_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_NETLINK_SOCK_DIAG", 31)  # there is no such protocol
    with pytest.raises(OSError, match="Protocol not supported"):
        list(ask_netlink())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert users_listening(*listener.getsockname()) == {os.getuid()}


def test_what_netlink_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_SOCK_DIAG_BY_FAMILY", 99)
    with pytest.raises(OSError, match="Invalid argument"):
        list(ask_netlink())


def test_what_netlink_cannot_tell_is_an_error_and_not_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_PROTOCOL", socket.IPPROTO_ICMP)  # as where the kernel's part for TCP is missing
    with pytest.raises(OSError, match="No such file or directory"):
        list(ask_netlink())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert users_listening(*listener.getsockname()) == {os.getuid()}
