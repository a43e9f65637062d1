"""Machines that can be cut off from each other: network namespaces of this program's own, joined by a bridge.

The network of the machine that this runs on is not touched: the program starts itself anew (`go_inside`) where there is
none, as the first process of a process namespace. Whatever is made lasts as long as the processes in it, and the system
ends those with the program, however that ends.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from penstock.addresses import joined_address

_INSIDE = "PENSTOCK_CHAOS_INSIDE"
_NEEDED = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "openssl": "openssl"}
_ENTER = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
_AS_ROOT = ["unshare", "--user", "--map-root-user", *_ENTER[1:]]
_NOBODY = "02:00:00:00:00:00"
"""A link address that no machine has."""
MOST_MACHINES = 16


def why_not() -> str:
    """Why no networks can be made here; "" where they can."""
    missing = [f"{command} ({package})" for command, package in _NEEDED.items() if shutil.which(command) is None]
    if missing:
        return f"networks of namespaces need {', '.join(missing)}"
    trial = "ip link add bridge0 type bridge && ip link add link0 type veth peer name link1 && unshare --net true"
    done = subprocess.run([*_enter(), "sh", "-c", trial], capture_output=True, text=True, check=False)
    return f"this user may make no networks here: {done.stderr.strip()}" if done.returncode else ""


def go_inside() -> None:
    """Begin this program anew where it has a network of its own; comes back where it has.

    Raises:
        SystemExit: there can be none.
    """
    if _INSIDE in os.environ:
        return
    reason = why_not()
    if reason:
        raise SystemExit(reason)
    _begin_anew()


def _begin_anew() -> NoReturn:
    command = [*_enter(), sys.executable, *sys.argv]
    os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})


def _enter() -> list[str]:
    return _ENTER if os.getuid() == 0 else _AS_ROOT


@dataclass(frozen=True)
class Home:
    """Where a process of a trial runs, and what it shows to others; as it is, this machine without settings.

    Attributes:
        host: the address at which it listens.
        name: the host by which others reach it.
        namespace: a process in the network namespace that it is to enter; 0 for none.
        keys: the folder with the token and the certificates; None for those of the user.
    """

    host: str = "127.0.0.1"
    name: str = "localhost"
    namespace: int = 0
    keys: Path | None = None

    def enter(self) -> None:
        """Let this thread, and those that it starts from now on, be there."""
        if self.namespace:
            with open(f"/proc/{self.namespace}/ns/net") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):  # os.setns came with Python 3.12
                    raise OSError(ctypes.get_errno(), "setns")
        os.environ.update(self.as_client())

    def as_client(self) -> dict[str, str]:
        """The environment that lets a client in."""
        if self.keys is None:
            return {}
        return {"PENSTOCK_TOKEN_FILE": str(self.keys / "token"), "PENSTOCK_TLS_ROOT": str(self.keys / "crt")}

    def as_server(self) -> dict[str, str]:
        """The arguments of a server's config."""
        if self.keys is None:
            return {"host": self.host}
        cert, key = str(self.keys / "crt"), str(self.keys / "key")
        return {"host": self.host, "token_file": str(self.keys / "token"), "tls_cert": cert, "tls_key": key}

    def service(self, port: int) -> str:
        """How a dispatcher that lives here is reached."""
        address = joined_address(self.name, port)
        return address if self.keys is None else f"grpc+tls://{address}"


class Network:
    """Machines on a bridge.

    Args:
        number: no other network of this program has it at the same time.
        folder: where their token and their certificate are put.
        ipv6: whether machines have addresses of IPv6 in place of those of IPv4.
    """

    def __init__(self, number: int, folder: Path, *, ipv6: bool = False) -> None:
        self._number = number
        self._prefix, self._bits = (f"fd77:{number % 250}::", "64 nodad") if ipv6 else (f"10.77.{number % 250}.", "24")
        self._bridge = f"bridge{number}"
        self._keys = folder
        self._holders: list[subprocess.Popen[bytes]] = []
        _make_keys(folder, [f"{self._prefix}{number}" for number in range(1, MOST_MACHINES + 1)])
        _ip(
            f"link add {self._bridge} type bridge",
            f"addr add {self._prefix}254/{self._bits} dev {self._bridge}",
            f"link set {self._bridge} up",
        )

    def machine(self) -> "Machine":
        """One more."""
        holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holders.append(holder)
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.write(b"in\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"in\n"  # it is there
        address = f"{self._prefix}{len(self._holders)}"
        machine = Machine(Home(address, address, holder.pid, self._keys), f"link{self._number}-{len(self._holders)}")
        _ip(
            f"link add {machine.link} type veth peer name eth0 netns {holder.pid}",
            f"link set {machine.link} master {self._bridge}",
            f"link set {machine.link} up",
        )
        _ip("link set lo up", f"addr add {address}/{self._bits} dev eth0", "link set eth0 up", within=holder.pid)
        return machine

    def close(self) -> None:
        """Let go of everything; a machine ends with the last process in it."""
        _ip(f"link delete {self._bridge}")
        for holder in self._holders:
            holder.communicate()


@dataclass(frozen=True)
class Machine:
    """A network namespace.

    Attributes:
        link: the bridge's end of its cable.
    """

    home: Home
    link: str

    def cut(self) -> None:
        """Nothing comes and nothing goes, and nobody is told."""
        _ip(f"link set {self.link} down")

    def mend(self) -> None:
        """The cable is back."""
        _ip(f"link set {self.link} up")

    def lose(self, other: "Machine") -> None:
        """What goes to that machine reaches nobody."""
        _ip(f"neigh replace {other.home.host} lladdr {_NOBODY} dev eth0 nud permanent", within=self.home.namespace)

    def find(self, other: "Machine") -> None:
        """It is found again."""
        _ip(f"neigh flush to {other.home.host} dev eth0 nud permanent", within=self.home.namespace)


HERE = Machine(Home(), "")
"""This machine as it is: it cannot be cut off."""


def _ip(*commands: str, within: int = 0) -> None:
    where = ["nsenter", "--target", str(within), "--net"] if within else []
    subprocess.run([*where, "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def _make_keys(folder: Path, addresses: Sequence[str]) -> None:
    """A token, and a certificate for all machines, as `SECURITY.md` says."""
    folder.mkdir(mode=0o700)
    names = ",".join(f"IP:{address}" for address in addresses)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=chaos", "-addext", f"subjectAltName={names}",
         "-out", str(folder / "crt"), "-keyout", str(folder / "key")],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text("a token for this trial only\n".replace(" ", "-"))
