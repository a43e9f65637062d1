"""Who is let in to a service and who is not, with real sockets and processes."""

import logging
import os
import re
import resource
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forked import Forked, run
from service_status import status

import penstock as ps
from penstock.cli import main
from penstock.cli.status_page import page
from penstock.rpc import listener as rpc_listener
from penstock.rpc.frames import Header
from penstock.service.security import credentials as ways
from penstock.service.security.credentials import (
    ClientCredentials,
    ServerCredentials,
    ServerSettings,
    client_credentials,
    read_token,
    token_of_user,
)
from penstock.service.transport.block_server import BlockServer
from penstock.service.transport.connect import connect
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.transport.identity import this_machine
from penstock.service.wire.dispatcher_messages import (
    GetDataset,
    GetStatus,
    OpenEpoch,
    RegisterDataset,
    WorkerHello,
)
from penstock.service.wire.subjects import DatasetInfo, Endpoint, JobParameters, PassInfo, Span
from penstock.service.wire.worker_messages import Fetch

TOKEN = "a-secret-that-is-long-enough"
OTHER = "another-secret-that-is-long-enough"
PENSTOCK = [sys.executable, "-m", "penstock"]
FETCH = Fetch(
    dataset_id="x", epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=Span(pass_number=0, start=0, stop=3)
)
NOBODY = 65534


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    return secret_file(tmp_path / "token", TOKEN)


def secret_file(path: Path, content: str, mode: int = 0o600) -> str:
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def address_of(dispatcher: ps.service.DispatchServer) -> str:
    return f"localhost:{dispatcher.port}"


@contextmanager
def command(*arguments: str) -> Iterator[tuple[Forked, str]]:
    """A command that goes on, and where it listens."""
    with listening(Forked("-m", "penstock", *arguments, pipes=("stdout", "stderr"))) as found:
        yield found


@contextmanager
def started(*arguments: str, **more: Any) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """As `command`, in a process that is started as a user's shell does."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with listening(subprocess.Popen([*PENSTOCK, *arguments], **pipes, **more)) as found:
        yield found


@contextmanager
def listening(process: Any) -> Iterator[tuple[Any, str]]:
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        found = re.search(r"at (grpc\S*://localhost:\d+)", line)
        assert found is not None, line + process.stderr.read()
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


# The token


def test_the_users_token_can_be_read_by_this_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    token = token_of_user()
    assert re.fullmatch("[0-9a-f]{64}", token) and token_of_user() == token
    (path,) = (tmp_path / "state" / "penstock").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.slow
def test_processes_that_begin_at_once_get_one_token(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from penstock.service.security.credentials import token_of_user; print(token_of_user())")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    started = [Forked(str(program), env=environment, pipes=("stdout",)) for _ in range(4)]
    assert len({process.communicate(timeout=30)[0] for process in started}) == 1
    assert [path.name for path in (tmp_path / "penstock").iterdir()] == ["token"]


def test_a_user_without_a_home_keeps_the_token_beside_the_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(ways, "private_directory", lambda: tmp_path)
    assert token_of_user() == read_token(str(tmp_path / ".token"))
    monkeypatch.setattr(ways, "private_directory", lambda: None)
    with pytest.raises(ps.errors.ServiceError, match="can be kept nowhere .*Not a directory.*PENSTOCK_TOKEN_FILE"):
        token_of_user()


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (TOKEN, 0o644, "can be read by other users: `chmod 600 "),
        (TOKEN, 0o602, "can be read by other users"),
        ("short", 0o600, "holds no token, one line of at least 16 letters"),
        ("two lines\nof more than sixteen", 0o600, "holds no token"),
        ("x" * 2000, 0o600, "has more than 1024 bytes"),
    ],
)
def test_a_token_file_is_checked(tmp_path: Path, content: str, mode: int, reason: str) -> None:
    path = secret_file(tmp_path / "token", content, mode)
    with pytest.raises(ps.errors.ServiceError, match=reason) as caught:
        read_token(path)
    assert content not in str(caught.value)
    with pytest.raises(ps.errors.ServiceError, match="cannot be read: No such file"):
        read_token(str(tmp_path / "nowhere"))


def test_a_group_may_share_a_token_file_that_was_given(tmp_path: Path) -> None:
    assert read_token(secret_file(tmp_path / "token", TOKEN + "\n", 0o640)) == TOKEN


def test_a_token_that_is_the_users_own_is_not_shared_with_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "penstock").mkdir()
    secret_file(tmp_path / "penstock" / "token", TOKEN, 0o640)
    with pytest.raises(ps.errors.ServiceError, match="can be read by other users"):
        token_of_user()


@pytest.mark.parametrize(
    ("address", "own", "tls", "secret"),
    [
        ("localhost:1", True, False, TOKEN),
        ("127.0.0.1:1", True, False, TOKEN),
        ("[::1]:1", False, False, TOKEN),
        ("host:1", True, True, ""),
        ("host:1", True, False, ""),
        ("localhost.evil.org:1", True, False, ""),
        ("host:1", False, True, TOKEN),
    ],
)
def test_the_users_own_token_never_leaves_the_machine(address: str, own: bool, tls: bool, secret: str) -> None:
    assert ClientCredentials(TOKEN, own=own).secret_for(address, tls=tls) == secret.encode()


def test_nothing_is_sent_over_a_network_in_the_clear(token_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", token_file)
    with pytest.raises(
        ps.errors.ServiceError, match=r"nothing is sent to host:1 without TLS.*use grpc\+tls://host:1, or set PENST"
    ):
        status("host:1", patience=0)
    monkeypatch.setenv("PENSTOCK_INSECURE", "1")
    assert client_credentials().secret_for("host:1", tls=False) == TOKEN.encode()


# At the door


def test_a_dispatcher_lets_in_who_knows_its_token(token_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.service.DispatchServer(ps.service.DispatcherConfig(token_file=token_file)) as dispatcher:
        service = address_of(dispatcher)
        with pytest.raises(
            ps.errors.ServiceError, match="dispatcher at localhost:.* not let this process in: .*another one"
        ):
            status(service)
        with pytest.raises(ps.errors.ServiceError, match="does not let this process in") as caught:
            status(service, ClientCredentials(OTHER))
        assert TOKEN not in str(caught.value) and OTHER not in str(caught.value)
        with pytest.raises(ps.errors.ServiceError, match="asks for a token, and none came"):
            status(service, ClientCredentials(""))
        assert status(service, ClientCredentials(TOKEN)).workers == []
        monkeypatch.setenv("PENSTOCK_TOKEN_FILE", token_file)
        assert status(service).workers == []


def test_a_wrong_token_is_an_error_at_once_and_not_tried_again() -> None:
    with ps.service.DispatchServer() as dispatcher, pytest.raises(ps.errors.ServiceError, match="does not let"):
        status(address_of(dispatcher), ClientCredentials(OTHER), patience=3600)


def test_nothing_of_a_strangers_is_decoded(producing: Any) -> None:
    reached: list[str] = []

    def noted(request: Fetch) -> Any:
        reached.append(request.dataset_id)
        return producing.produce(request)

    server = BlockServer(noted, ServerSettings().access())
    content = msgspec.msgpack.encode(Header(FETCH, 1))
    with ps.service.DispatchServer() as dispatcher:
        for port in (dispatcher.port, server.port):
            for said in (b"", b"penstock rpc 1\r\n" + bytes(72), b"GET / HTTP/1.1\r\n\r\n"):
                with socket.create_connection(("localhost", port)) as line:
                    with suppress(OSError):  # who says something else is hung up on at once
                        line.sendall(said + struct.pack("<IQ", len(content), 0) + content)
                        line.shutdown(socket.SHUT_WR)
                    assert ended(line)
    server.stop()
    assert reached == []


def test_who_poses_as_a_dispatcher_learns_no_token(token_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", token_file)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def listen() -> None:
            line, _ = impostor.accept()
            with line:
                line.sendall(b"penstock rpc 1\r\n" + bytes(32))
                heard.append(line.recv(48 + 40, socket.MSG_WAITALL))
                line.sendall(bytes(32))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(ps.errors.ServiceError, match="does not let this process in"):
            status(f"127.0.0.1:{impostor.getsockname()[1]}")
        thread.join()
    assert len(b"".join(heard)) == 48 + 40 and TOKEN.encode() not in b"".join(heard)


@pytest.mark.slow
def test_a_worker_lets_in_who_knows_its_token(token_file: str) -> None:
    config = ps.service.DispatcherConfig(token_file=token_file)
    with ps.service.DispatchServer(config) as dispatcher:
        told = ps.service.WorkerConfig(dispatcher_address=address_of(dispatcher), token_file=token_file)
        with ps.service.WorkerServer(told):
            (known,) = status(address_of(dispatcher), ClientCredentials(TOKEN)).workers
            outside = Endpoint(address=known.info.endpoint.address)
            with pytest.raises(
                ps.errors.ServiceError, match="data worker at localhost:.* does not let this process in"
            ):
                next(connect(outside, "network", ClientCredentials(OTHER)).fetch(FETCH))
            with pytest.raises(ps.errors.LostDataWorkerError, match="knows no dataset 'x'"):
                next(connect(outside, "network", ClientCredentials(TOKEN)).fetch(FETCH))
        stranger = ps.service.WorkerConfig(dispatcher_address=address_of(dispatcher))
        with pytest.raises(ps.errors.ServiceError, match="dispatcher at .* does not let this process in"):
            ps.service.WorkerServer(stranger)


@pytest.mark.slow
def test_a_local_service_has_a_token_of_its_own() -> None:
    with ps.service.local(num_workers=1) as service:
        with pytest.raises(ps.errors.ServiceError, match="does not let this process in"):
            status(service.target, client_credentials())
        (known,) = status(service.target).workers
        read = ps.Dataset.range(3).apply(
            ps.service.distribute("distributed_epoch", service.target, data_transfer_protocol="flight")
        )
        assert [int(x) for x in read] == [0, 1, 2]
        with pytest.raises(ps.errors.ServiceError, match="data worker at .* does not let this process in"):
            next(connect(Endpoint(address=known.info.endpoint.address), "network", client_credentials()).fetch(FETCH))
    with pytest.raises(ps.errors.ServiceError, match="has ended, because this program has stopped it"):
        status(service.target)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_refused() -> None:
    with ExitStack() as stack:
        dispatcher = stack.enter_context(ps.service.DispatchServer())
        config = ps.service.WorkerConfig(dispatcher_address=address_of(dispatcher))
        stack.enter_context(ps.service.WorkerServer(config))
        (known,) = status(address_of(dispatcher)).workers
        assert "does not let this process in: the token is another one" in as_nobody(
            f"main(['status', '{address_of(dispatcher)}'])"
        )
        assert "PermissionError" in as_nobody(f"open({str(token_path())!r})")
        found = msgspec.json.encode(known.info.endpoint).decode()
        assert "does not let this process in: the token is another one" in as_nobody(
            f"import msgspec\nfrom penstock.service.transport.connect import connect\n"
            f"from penstock.service.wire.subjects import Endpoint\n"
            f"connect(msgspec.json.decode({found!r}, type=Endpoint), 'shared_memory')"
        )


def token_path() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock" / "token"


def as_nobody(program: str) -> str:
    """What a program writes that another user runs, who may not even read the files of this one's Python."""
    theirs = Path(f"/tmp/penstock-{NOBODY}")
    made = not theirs.exists()
    begin = (
        f"import encodings.idna, os, socket\nfrom penstock.cli import main\nos.setgid({NOBODY}); os.setuid({NOBODY})\n"
    )
    environment = {**os.environ, "HOME": "/nonexistent", "XDG_STATE_HOME": ""}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(begin + program)
        file.flush()
        done = run(file.name, env=environment)
    if made:
        shutil.rmtree(theirs, ignore_errors=True)
    return done.stdout + done.stderr


# What other users have put there


def link_of_nobody(link: Path, target: Path) -> Path:
    """A link that another user has made."""
    if os.getuid() != 0:
        pytest.skip("only root can give a link away")
    link.symlink_to(target)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    return link


def test_a_token_file_that_is_another_users_link_is_refused(tmp_path: Path, token_file: str) -> None:
    link = link_of_nobody(tmp_path / "link", Path(token_file))
    behind = tmp_path / "ours"
    behind.symlink_to(link)
    for path in (link, behind):
        with pytest.raises(
            ps.errors.ServiceError, match=rf"{link} is a link that user {NOBODY} has made.*name what is behin"
        ):
            read_token(str(path))


def test_a_work_dir_below_another_users_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = link_of_nobody(tmp_path / "link", tmp_path / "real")
    for place in (link, link / "new" / "work"):
        with pytest.raises(ps.StorageError, match=f"not work in {place}: {link} is a link that user {NOBODY} has"):
            ps.service.DispatchServer(ps.service.DispatcherConfig(work_dir=place))
    assert list((tmp_path / "real").iterdir()) == []


def test_the_home_is_meant_by_a_tilde_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    secret_file(tmp_path / "token", TOKEN)
    assert read_token("~/token") == TOKEN
    with ps.service.DispatchServer(ps.service.DispatcherConfig(work_dir="~/work", token_file="~/token")):
        assert (tmp_path / "work" / "journal.sqlite").exists()
    with pytest.raises(ps.InvalidArgumentError, match="begins with '~nobody-of-this-name', and there is no user"):
        read_token("~nobody-of-this-name/token")


def test_what_others_say_moves_no_terminal_and_feigns_no_line(caplog: pytest.LogCaptureFixture) -> None:
    nasty = "\x1b[2J\nINFO data worker 1 is lost\u202e"
    with caplog.at_level(logging.INFO), ps.service.DispatchServer() as dispatcher:
        client = DispatcherClient(address_of(dispatcher))
        info = DatasetInfo(kind="rows", length=3, cardinality=3)
        client.ask(RegisterDataset(definition=b"x", info=info, dataset_id=nasty))
        parameters = JobParameters(dataset_id=nasty, policy=1)
        client.ask(OpenEpoch(job_name=nasty, parameters=parameters, epoch=0, seed=0, consumer=nasty, trainer=nasty))
        shown = page(client.address, client.ask(GetStatus()))
        with pytest.raises(ps.PenstockError, match=r"dataset '\\x1b\[2J\\nINFO.*\?'"):
            client.ask(GetDataset(dataset_id=f"{nasty}?"))
        for address in (nasty, "x" * 257):
            with pytest.raises(ps.InvalidArgumentError, match=r"Expected `str` .*at `\$.endpoint.address`"):
                client.ask(WorkerHello(endpoint=Endpoint(address=address)))
        client.close()
    everything = [shown.replace("\n", ""), *(record.getMessage() for record in caplog.records)]
    assert sum("INFO data worker 1 is lost" in text for text in everything) >= 3
    assert [text for text in everything if not text.isprintable()] == []


def test_names_have_a_length_limit() -> None:
    long = "n" * 257
    with pytest.raises(ps.InvalidArgumentError, match=r"job_name=...\) must have at most 256 characters, .*257"):
        ps.service.distribute("distributed_epoch", "localhost:1", job_name=long)
    with ps.service.DispatchServer() as dispatcher:
        client = DispatcherClient(address_of(dispatcher))
        asked = OpenEpoch(
            job_name=long, parameters=JobParameters(dataset_id="x", policy=1), epoch=0, seed=0, consumer=""
        )
        with pytest.raises(ps.InvalidArgumentError, match=r"length <= 256 - at `\$.job_name`"):
            client.ask(asked)
        client.close()


# Secrets stay secret


@pytest.mark.extended
def test_tokens_are_in_no_process_list_no_log_and_no_status(tmp_path: Path) -> None:
    token_file = secret_file(tmp_path / "token", TOKEN)
    with started("dispatcher", "--port", "0", "--token-file", token_file) as (dispatcher, service):
        address = service.split("://")[1]
        with started("worker", "--dispatcher", address, "--token-file", token_file) as (worker, _):
            environment = {**os.environ, "PENSTOCK_TOKEN_FILE": token_file}
            shown = run("-m", "penstock", "status", address, env=environment)
            assert "1 data worker" in shown.stdout
            lists = [Path(f"/proc/{process.pid}/{name}").read_text() for process in (dispatcher, worker)
                     for name in ("cmdline", "environ")]  # fmt: skip
            worker.kill()
            dispatcher.kill()
            logs = [text for process in (worker, dispatcher) for text in process.communicate()]
    everything = "\n".join([*lists, *logs, shown.stdout, shown.stderr])
    assert "--token-file" in everything and "joined" in everything
    assert TOKEN not in everything


@pytest.mark.slow
@pytest.mark.usefixtures("own_children")
def test_a_local_services_token_is_in_no_process_list() -> None:
    with ps.service.local(num_workers=1) as service:
        token = ways.credentials_for(service.target.split("://")[1]).token
        assert len(token) == 64
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    found.append((entry / name).read_text(errors="replace"))
                except (FileNotFoundError, PermissionError, ProcessLookupError):
                    continue
        assert any("--until-input-ends" in line for line in found)
        assert not any(token in line for line in found)


def test_secrets_are_not_shown(token_file: str) -> None:
    config = ps.service.DispatcherConfig(token_file=token_file)
    assert TOKEN not in repr([config, config.credentials(), ClientCredentials(TOKEN, key=TOKEN.encode())])


# Other machines


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "give token_file and tls_cert and tls_key too"),
        ({"token_file": "x"}, "give tls_cert and tls_key too"),
        ({"tls_cert": "x", "tls_key": "x"}, "give token_file too"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "host"])
def test_other_machines_are_not_let_in_without_a_token_and_tls(host: str, given: dict[str, str], missing: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=rf"DispatcherConfig\(host='{host}'\) lets other .*{missing}"):
        ps.service.DispatcherConfig(host=host, **given)  # type: ignore[arg-type]
    with pytest.raises(ps.InvalidArgumentError, match=rf"WorkerConfig\(host='{host}'\) lets other .*{missing}"):
        ps.service.WorkerConfig(dispatcher_address="x:1", host=host, **given)  # type: ignore[arg-type]


def test_tls_is_given_as_a_whole() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="tls_cert and tls_key belong together"):
        ps.service.DispatcherConfig(tls_cert="x")
    with pytest.raises(ps.InvalidArgumentError, match=r"WorkerConfig\(tls_client_ca=...\) needs TLS"):
        ps.service.WorkerConfig(dispatcher_address="x:1", tls_client_ca="x")


def test_who_is_insecure_on_purpose_is_told_so(caplog: pytest.LogCaptureFixture, token_file: str) -> None:
    with (
        caplog.at_level(logging.WARNING),
        ps.service.DispatchServer(ps.service.DispatcherConfig(host="0.0.0.0", insecure=True)) as dispatcher,
    ):
        assert status(address_of(dispatcher), ClientCredentials("")).workers == []
    (record,) = caplog.records
    assert record.getMessage() == (
        "INSECURE: dispatcher listens at 0.0.0.0 and asks for no token: anyone who reaches it can run programs as this "
        "user"
    )
    caplog.clear()
    config = ps.service.DispatcherConfig(host="0.0.0.0", insecure=True, token_file=token_file)
    with caplog.at_level(logging.WARNING), ps.service.DispatchServer(config) as dispatcher:
        address = address_of(dispatcher)
        with pytest.raises(ps.errors.ServiceError, match="does not let"):
            status(address)
    assert "without TLS, so messages can be read and changed on the way" in caplog.text


def test_the_command_refuses_to_let_other_machines_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatcher", "--port", "0", "--host", "0.0.0.0"]) == 2
    assert "lets other machines in, who could run their programs here: give --token-file" in capsys.readouterr().err


# TLS


def certificate(directory: Path, name: str) -> tuple[str, str]:
    """A certificate that signs itself, for localhost; as `SECURITY.md` says how."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make a certificate")
    found = str(directory / f"{name}.crt"), str(directory / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-out", found[0], "-keyout", found[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return found


@pytest.mark.slow
def test_a_service_by_tls(tmp_path: Path, token_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path, "ours")
    other, _ = certificate(tmp_path, "other")
    lock = {"token_file": token_file, "tls_cert": cert, "tls_key": key}
    with ps.service.DispatchServer(ps.service.DispatcherConfig(**lock)) as dispatcher:  # type: ignore[arg-type]
        assert dispatcher.target == f"grpc+tls://localhost:{dispatcher.port}"
        values = {"token": TOKEN, "tls_cert": Path(cert).read_bytes(), "tls_key": Path(key).read_bytes()}
        where = ps.service.ServiceAddress(dispatcher.target, token=TOKEN, tls_root=values["tls_cert"])
        worker = ps.service.WorkerConfig(dispatcher_address=where, tls_root=values["tls_cert"], **values)  # type: ignore[arg-type]
        with ps.service.WorkerServer(worker) as server:
            assert server.target.startswith("grpc+tls://localhost:")
            assert len(ps.service.status(where).workers) == 1
            monkeypatch.setenv("PENSTOCK_TOKEN_FILE", token_file)
            monkeypatch.setenv("PENSTOCK_TLS_ROOT", cert)
            for service in (dispatcher.target, ("grpc+tls", address_of(dispatcher))):
                read = ps.Dataset.range(5).apply(
                    ps.service.distribute("distributed_epoch", service, data_transfer_protocol="flight")
                )
                assert [int(x) for x in read] == [0, 1, 2, 3, 4]
            monkeypatch.setenv("PENSTOCK_TLS_ROOT", other)
            with pytest.raises(
                ps.errors.ServiceError, match="its certificate signed itself, and is none of those of PENSTOCK_"
            ):
                status(dispatcher.target)
            outside = Endpoint(address=server.target.split("://")[1], tls=True)
            with pytest.raises(
                ps.errors.LostDataWorkerError, match="worker at localhost:.* its certificate signed itself"
            ):
                next(connect(outside, "network", client_credentials()).fetch(FETCH))


def signed(directory: Path, name: str, by: tuple[str, str], names: str = "DNS:localhost", days: int = 2) -> Any:
    """A certificate that an authority has signed, as `SECURITY.md` says how."""
    cert, key, request = (str(directory / f"{name}.{ending}") for ending in ("crt", "key", "csr"))
    for arguments in (
        ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName={names}", "-out", request, "-keyout", key],
        ["x509", "-req", "-in", request, "-CA", by[0], "-CAkey", by[1], "-CAcreateserial", "-copy_extensions", "copy",
         "-days", str(days), "-out", cert],
    ):  # fmt: skip
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    return cert, key


@pytest.mark.slow
def test_each_mistake_with_certificates_is_named_in_one_line(
    tmp_path: Path, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = certificate(tmp_path, "ours"), certificate(tmp_path, "theirs")
    host, elsewhere = signed(tmp_path, "host", ours), signed(tmp_path, "elsewhere", ours, names="DNS:elsewhere")
    client, foreign = signed(tmp_path, "client", ours), signed(tmp_path, "foreign", theirs)

    def said(server: tuple[str, str], protocol: str = "grpc+tls", asks: str | None = None, **shown: str) -> str:
        tls = {"tls_cert": server[0], "tls_key": server[1]} if server else {}
        config = ps.service.DispatcherConfig(token_file=token_file, tls_client_ca=asks, **tls)  # type: ignore[arg-type]
        for name in ("ROOT", "CERT", "KEY"):
            monkeypatch.delenv(f"PENSTOCK_TLS_{name}", raising=False)
            if name.lower() in shown:
                monkeypatch.setenv(f"PENSTOCK_TLS_{name}", shown[name.lower()])
        monkeypatch.setenv("PENSTOCK_TOKEN_FILE", token_file)
        with ps.service.DispatchServer(config) as dispatcher:
            try:
                return f"{len(status(f'{protocol}://{address_of(dispatcher)}', patience=60).workers)} workers"
            except ps.errors.ServiceError as error:
                return re.sub(
                    r"localhost:\d+", "localhost:1", str(error).partition("cannot be reached: ")[2] or str(error)
                )

    root = {"root": ours[0]}
    mutual = {**root, "asks": ours[0]}
    refused = "none of its authorities (--tls-client-ca) is behind it. Name another one in PENSTOCK_TLS_CERT and"
    unknown = "its certificate was signed by none of the authorities that are trusted, those "
    for message, expected in (
        (said(host, **root), "0 workers"),
        (said(host, **mutual, cert=client[0], key=client[1]), "0 workers"),
        (said(host), unknown + "that this machine trusts: name the file with the authority that signed"),
        (said(host, root=theirs[0]), unknown + "of PENSTOCK_TLS_ROOT: name the file"),
        (said(theirs, **root), "its certificate signed itself, and is none of those of PENSTOCK_TLS_ROOT: name a file"),
        (said(elsewhere, **root), "its certificate (--tls-cert) is not for the name 'localhost'"),
        (said(host, "grpc", **root), "it is reached by TLS: use grpc+tls://localhost:1"),
        (said((), **root), "it is reached without TLS: use grpc://localhost:1"),
        (said(host, **mutual), "it asks for a certificate, and none is shown: name one that its authorities have"),
        (said(host, **mutual, cert=foreign[0], key=foreign[1]),
         f"it does not take the certificate of 'foreign', signed by 'theirs': {refused}"),
        (said(host, **mutual, cert=theirs[0], key=theirs[1]),
         f"it does not take the certificate of 'theirs', which signed itself: {refused}"),
        (said(host, **mutual, cert=client[0]), "PENSTOCK_TLS_CERT and PENSTOCK_TLS_KEY name a certificate and its"),
        (said(host, **mutual, cert=client[0], key=foreign[1]),
         f"the key {foreign[1]} is not that of the certificate {client[0]}"),
    ):  # fmt: skip
        assert message.startswith(expected) and "\n" not in message


def test_a_certificate_that_has_expired_is_not_shown(tmp_path: Path, token_file: str) -> None:
    ours = certificate(tmp_path, "ours")
    cert, key = signed(tmp_path, "old", ours, days=-1)
    expired = f"the certificate {cert} has expired: .* PENSTOCK_TLS_CERT \\(of a server: --tls-cert"
    with pytest.raises(ps.errors.ServiceError, match=expired):
        ps.service.DispatchServer(ps.service.DispatcherConfig(token_file=token_file, tls_cert=cert, tls_key=key))
    with pytest.raises(ps.errors.ServiceError, match=expired):
        client_credentials(certificate=cert, key=key)
    served = ServerCredentials(TOKEN, *(Path(file).read_bytes() for file in (cert, key)))
    # It has expired since the server began.
    server = BlockServer(lambda _: iter(()), served.access)  # type: ignore[arg-type]
    with pytest.raises(
        ps.errors.ServiceError, match=r"its certificate \(--tls-cert\) has expired: it needs a new one$"
    ):
        status(f"grpc+tls://localhost:{server.port}", client_credentials(token_file=token_file, roots=ours[0]))
    server.stop()


def test_certificates_and_keys_are_checked(tmp_path: Path, token_file: str) -> None:
    cert, key = certificate(tmp_path, "ours")
    for wrong, message in (
        ({"tls_cert": token_file}, "holds no certificate in PEM"),
        ({"tls_cert": str(tmp_path / "no")}, "certificate .* cannot be read: No such file"),
        ({"tls_key": token_file}, "holds no private key in PEM"),
        ({"tls_key": str(tmp_path / "no")}, "key .* cannot be read: No such file"),
    ):
        config = ps.service.DispatcherConfig(**{"tls_cert": cert, "tls_key": key, **wrong})  # type: ignore[arg-type]
        with pytest.raises(ps.errors.ServiceError, match=message) as caught:
            ps.service.DispatchServer(config)
        assert TOKEN not in str(caught.value)
    os.chmod(key, 0o644)
    with pytest.raises(ps.errors.ServiceError, match="can be read by other users"):
        ps.service.DispatchServer(ps.service.DispatcherConfig(tls_cert=cert, tls_key=key))


# Those who do not show the token


def ended(line: socket.socket, seconds: float = 20) -> bool:
    line.settimeout(seconds)
    try:
        while line.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.extended
def test_connections_without_the_token_end_after_their_time(
    tmp_path: Path, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_listener, "_SECONDS", 2.0)
    cert, key = certificate(tmp_path, "ours")
    config = ps.service.DispatcherConfig(
        host="0.0.0.0", token_file=token_file, tls_cert=cert, tls_key=key, heartbeat_seconds=100
    )
    with ps.service.DispatchServer(config) as dispatcher:
        known = DispatcherClient(dispatcher.target, credentials=client_credentials(token_file=token_file, roots=cert))
        known.ask(GetStatus())
        (line,) = known._idle
        where = ("127.0.0.1", dispatcher.port)
        with socket.create_connection(where) as silent, socket.create_connection(where) as begun:
            begun.send(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a handshake
            assert ended(silent) and ended(begun)
        known.ask(GetStatus(), patience_seconds=0)
        assert list(known._idle) == [line]
        known.close()


def memory_of(process: int) -> dict[str, int]:
    found = re.findall(r"^(Vm\w+):\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return {name: int(number) << 10 for name, number in found}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of processes is read from /proc")
def test_many_bytes_without_the_token_take_no_memory() -> None:
    with command("dispatcher", "--port", "0") as (dispatcher, service):
        before = memory_of(dispatcher.pid)["VmHWM"]
        where = ("127.0.0.1", int(service.rpartition(":")[2]))
        with socket.create_connection(where) as line, suppress(ConnectionError):
            for _ in range(1 << 8):
                line.sendall(bytes(1 << 20))
        assert memory_of(dispatcher.pid)["VmHWM"] - before < 1 << 24
        assert status(service).workers == []


@pytest.mark.slow
def test_a_large_dataset_of_the_users_own_goes_through() -> None:
    with ps.service.DispatchServer() as dispatcher:
        client = DispatcherClient(address_of(dispatcher))
        info = DatasetInfo(kind="rows", length=3, cardinality=3)
        definition = bytes(1 << 24)
        found = client.ask(RegisterDataset(definition=definition, info=info)).dataset_id
        assert client.ask(GetDataset(dataset_id=found)).definition == definition
        client.close()


# Those who connect and say nothing


def connected(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def threads_of(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/task"))


@pytest.mark.alone  # 2000 connections: other tests would find no room for theirs
def test_a_thousand_silent_clients_do_not_stop_a_service() -> None:
    soft = 256  # the commands take as many as they may have
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("so few files may be open here that a thousand lines have no room")
    few: dict[str, Any] = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}
    with ExitStack() as stack:
        dispatcher, service = stack.enter_context(started("dispatcher", "--port", "0", **few))
        worker, reached = stack.enter_context(started("worker", "--dispatcher", service, **few))
        silent = connected(int(service.rpartition(":")[2]), 1000) + connected(int(reached.rpartition(":")[2]), 1000)
        for line in silent:
            stack.callback(line.close)
        read = ps.Dataset.range(100).apply(
            ps.service.distribute("distributed_epoch", service, data_transfer_protocol="flight")
        )
        assert [int(x) for x in read] == list(range(100))
        assert max(threads_of(dispatcher.pid), threads_of(worker.pid)) < 100


def test_silent_lines_cost_a_worker_no_thread_and_the_oldest_go_first(producing: Any) -> None:
    server = BlockServer(producing.produce, ServerSettings().access())
    before = threading.active_count()
    with ExitStack() as stack:
        lines = []
        for _ in range(1000):
            lines.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            lines[-1].connect(server.socket.replace("@", "\0").encode())
        connection = connect(Endpoint(address="x:1", machine=this_machine(), socket=server.socket), "shared_memory")
        assert len([answer for answer in connection.fetch(FETCH) if isinstance(answer, tuple)]) == 3
        assert threading.active_count() <= before + 1
        assert ended(lines[0])  # closed for others
        connection.close()
        del connection
    server.stop()
