"""The token of data workers, and tokens and certificates whose files change while a service runs."""

import logging
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from service_status import status

import penstock as ps
from penstock.service.security.credentials import ClientCredentials, client_credentials, worker_token
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetDataset, GetStatus, RegisterDataset, Stop
from penstock.service.wire.subjects import DatasetInfo

TOKEN = "a-secret-that-is-long-enough"
NEW = "another-secret-that-is-long-enough"
LAST_NAME_OF_LOGGER = "penstock.service.security"


def written(path: Path, content: str) -> str:
    """Put a file in the place of another one, as Kubernetes and certbot do."""
    new = path.with_suffix(".new")
    new.write_text(content)
    new.chmod(0o600)
    os.replace(new, path)
    return str(path)


def certificate(directory: Path, name: str, days: int) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make a certificate")
    found = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", str(days), "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
         "-out", found[0], "-keyout", found[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return found


def test_a_data_workers_token_registers_a_worker_and_nothing_else(tmp_path: Path) -> None:
    with ps.service.DispatchServer(ps.service.DispatcherConfig(token=TOKEN)) as dispatcher:
        address = f"localhost:{dispatcher.port}"
        where = ps.service.ServiceAddress(address, token=TOKEN)
        token_file = written(tmp_path / "worker-token", worker_token(TOKEN))
        config = ps.service.WorkerConfig(dispatcher_address=address, token_file=token_file)
        with ps.service.WorkerServer(config):
            read = ps.Dataset.range(4).apply(
                ps.service.distribute("distributed_epoch", where, data_transfer_protocol="network")
            )
            assert [int(x) for x in read] == [0, 1, 2, 3]
            with closing(DispatcherClient(address, credentials=ClientCredentials(worker_token(TOKEN)))) as worker:
                for message in (
                    RegisterDataset(definition=b"x", info=DatasetInfo(kind="rows", length=1, cardinality=1)),
                    GetStatus(),
                    Stop(),
                ):
                    with pytest.raises(ps.InvalidArgumentError, match=r"token of data workers.*PENSTOCK_TOKEN_FILE"):
                        worker.ask(message)
                with pytest.raises(ps.InvalidArgumentError, match="knows no dataset 'y'"):
                    worker.ask(GetDataset(dataset_id="y"))
    with pytest.raises(
        ps.errors.ServiceError, match="needs the token of the service's trainers, and this is that of its data"
    ):
        ps.service.DispatchServer(ps.service.DispatcherConfig(token=worker_token(TOKEN)))


def test_the_shells_recipe_makes_the_token_of_data_workers() -> None:
    recipe = "printf 'worker-%s' \"$(printf 'penstock data worker %s' \"$0\" | sha256sum | cut -c1-64)\""
    assert subprocess.run(["sh", "-c", recipe, TOKEN], capture_output=True, text=True).stdout == worker_token(TOKEN)
    for page in ("SECURITY.md", "deploy/README.md"):
        assert "penstock data worker %s" in (Path(__file__).parents[2] / page).read_text()


def test_a_renewed_token_is_taken_by_servers_and_by_clients_that_run(tmp_path: Path) -> None:
    token = tmp_path / "token"
    file = written(token, TOKEN)
    with ps.service.DispatchServer(ps.service.DispatcherConfig(token_file=file)) as dispatcher:
        address = f"localhost:{dispatcher.port}"
        with closing(DispatcherClient(address, credentials=client_credentials(token_file=file))) as client:
            assert client.ask(GetStatus()).workers == []
            written(token, NEW)
            with pytest.raises(ps.errors.ServiceError, match="the token is another one"):
                status(address, ClientCredentials(TOKEN))
            assert client.ask(GetStatus()).workers == []
            assert status(address, ClientCredentials(NEW)).workers == []
            written(token, "short")
            assert status(address, ClientCredentials(NEW)).workers == []


def test_a_renewed_certificate_is_shown_once_its_key_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = certificate(tmp_path, "first", 2)
    renewed, its_key = certificate(tmp_path, "second", 90)
    roots = cert.read_bytes() + renewed.read_bytes()
    lock = ps.service.DispatcherConfig(token=TOKEN, tls_cert=str(cert), tls_key=str(key))
    with caplog.at_level(logging.WARNING, LAST_NAME_OF_LOGGER), ps.service.DispatchServer(lock) as dispatcher:
        assert f"the certificate {cert} expires in 2.0 days" in caplog.text
        target = f"grpc+tls://localhost:{dispatcher.port}"
        second = ClientCredentials(TOKEN, roots=renewed.read_bytes())
        with pytest.raises(ps.errors.ServiceError, match="signed by none|signed itself"):
            status(target, second)
        os.replace(renewed, cert)
        assert status(target, ClientCredentials(TOKEN, roots=roots)).workers == []
        assert "stay in use: the key" in caplog.text
        os.replace(its_key, key)
        assert status(target, second).workers == []
