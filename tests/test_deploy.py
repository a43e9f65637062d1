"""What `deploy/` holds fits together, and its commands are those of penstock."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from until import until

import penstock as ps
from penstock.cli import _parser
from penstock.service import DispatcherConfig, WorkerConfig
from penstock.service.metrics import prometheus_text
from penstock.service.security.credentials import worker_token

DEPLOY = Path(__file__).parent.parent / "deploy"
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


MANIFESTS = ("dispatcher.yaml", "workers.yaml", "network-policy.yaml")


def objects(files: Sequence[str] = MANIFESTS) -> list[dict[str, Any]]:
    return [found for file in files for found in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [found for found in objects() if found["kind"] == kind]


def arguments(command: list[str]) -> Any:
    """The options of a command, with what Kubernetes or the shell puts in."""
    values = {"POD_NAME": "penstock-workers-3", "POD_NAMESPACE": "data", "hostname": "node7"}
    return _parser().parse_args([re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], part) for part in command])


def test_the_commands_of_the_containers_are_penstocks() -> None:
    (dispatcher,), (worker,) = (
        found["spec"]["template"]["spec"]["containers"] for found in sorted(of_kind("StatefulSet"), key=str)
    )
    one, other = arguments(dispatcher["args"]), arguments(worker["args"])
    secure = {name: getattr(one, name) for name in ("token_file", "tls_cert", "tls_key")}
    DispatcherConfig(host=one.host, port=one.port, work_dir=one.work_dir, **secure)
    config = WorkerConfig(
        dispatcher_address=other.dispatcher,
        host=other.host,
        port=other.port,
        worker_address=other.worker_address,
        tls_root=other.tls_root,
        **secure,
    )
    assert config.dispatcher_address == "grpc+tls://penstock-dispatcher.data.svc:5050"
    assert config.worker_address == "penstock-workers-3.penstock-workers.data.svc:5051"
    assert [dispatcher["ports"][0]["containerPort"], worker["ports"][0]["containerPort"]] == [one.port, other.port]


def test_the_ports_of_the_metrics_are_one() -> None:
    dispatcher = next(found for found in of_kind("StatefulSet") if found["metadata"]["name"] == "penstock-dispatcher")
    (container,) = dispatcher["spec"]["template"]["spec"]["containers"]
    port = arguments(container["args"]).metrics_port
    service = next(found for found in of_kind("Service") if found["metadata"]["name"] == "penstock-dispatcher")
    policy, _ = of_kind("NetworkPolicy")
    shown, scaler = yaml.safe_load_all((DEPLOY / "examples" / "keda.yaml").read_text())
    assert scaler["spec"]["triggers"][0]["authenticationRef"]["name"] == shown["metadata"]["name"]
    assert {"name": "metrics", "containerPort": port} in container["ports"]
    assert service["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    assert policy["spec"]["ingress"][-1]["ports"] == [{"protocol": "TCP", "port": port}]
    assert f":{port}/metrics" in scaler["spec"]["triggers"][0]["metadata"]["url"]


def test_the_metric_that_autoscalers_read_is_served() -> None:
    (scaler,) = objects(["autoscaling/autoscaler.yaml"])
    _, keda = yaml.safe_load_all((DEPLOY / "examples" / "keda.yaml").read_text())
    (trigger,) = keda["spec"]["triggers"]
    names = {scaler["spec"]["metrics"][0]["external"]["metric"]["name"], trigger["metadata"]["valueLocation"]}
    with ps.service.DispatchServer() as dispatcher:
        assert all(f"\n{name} 0\n" in prometheus_text(dispatcher.status()) for name in names)


def test_selectors_services_and_mounts_name_what_there_is() -> None:
    sets = {found["metadata"]["name"]: found for found in of_kind("StatefulSet")}
    for service in of_kind("Service"):
        pods = sets[service["metadata"]["name"]]["spec"]["template"]
        assert service["spec"]["selector"] == pods["metadata"]["labels"]
    for found in sets.values():
        spec = found["spec"]["template"]["spec"]
        assert found["spec"]["selector"]["matchLabels"] == found["spec"]["template"]["metadata"]["labels"]
        assert found["spec"]["serviceName"] == found["metadata"]["name"]
        claims = [claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", [])]
        volumes = {volume["name"] for volume in spec["volumes"]} | set(claims)
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        places = tuple(mount["mountPath"] for mount in container["volumeMounts"])
        files = [part.partition("=")[2] for part in container["args"] if re.search(r"-(file|cert|key|root|dir)=", part)]
        assert all(file.startswith(places) for file in files)
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for probe, path in {"readinessProbe": "/readyz", "livenessProbe": "/healthz"}.items():
            assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_kustomization_renders() -> None:
    done = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    assert sorted(found["kind"] for found in rendered) == sorted(found["kind"] for found in objects())
    assert done.stdout.count("image: registry.example/penstock:1") == 2


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_autoscaler_decides_on_replicas_alone(tmp_path: Path) -> None:
    base = os.path.relpath(DEPLOY / "kubernetes", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{base}]\ncomponents: [{base}/autoscaling]\n")
    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True)
    found = {(found["kind"], found["metadata"]["name"]): found["spec"] for found in yaml.safe_load_all(done.stdout)}
    assert "replicas" not in found["StatefulSet", "penstock-workers"]
    assert found["StatefulSet", "penstock-dispatcher"]["replicas"] == 1
    target = found["HorizontalPodAutoscaler", "penstock-workers"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in found


@contextmanager
def chart() -> Iterator[Any]:
    """The chart, as Helm's own library loads it."""
    helm = pytest.importorskip("helm_python", reason="Helm is not installed (extra `deploy`)")
    with helm.Chart.load(DEPLOY / "kubernetes") as loaded:
        yield loaded


def rendered(loaded: Any, **values: Any) -> list[dict[str, Any]]:
    texts = loaded.render(values=values, name="data", namespace="data").values()
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def test_the_chart_changes_nothing_but_what_its_values_say() -> None:
    with chart() as loaded:
        as_it_is = rendered(loaded, image="penstock")
        assert as_it_is == objects()
        changed = rendered(
            loaded,
            image="mine:2",
            worker={"replicas": 9, "pod": {"nodeSelector": {"pool": "data"}}, "resources": {"requests": {"cpu": "2"}}},
            dispatcher={"storage": "1Gi"},
        )
        dispatcher, worker = (found["spec"] for found in changed if found["kind"] == "StatefulSet")
        assert dispatcher["volumeClaimTemplates"][0]["spec"]["resources"]["requests"] == {"storage": "1Gi"}
        pod = worker["template"]["spec"]
        assert (worker["replicas"], pod["nodeSelector"], pod["containers"][0]["image"]) == (
            9,
            {"pool": "data"},
            "mine:2",
        )
        assert pod["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
        assert pod["volumes"] == as_it_is[3]["spec"]["template"]["spec"]["volumes"]
        with pytest.raises(Exception, match="additional properties 'wroker' not allowed"):
            rendered(loaded, wroker={})


@pytest.mark.slow
def test_what_the_chart_renders_fits_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no schemas (extra `deploy`)").validate
    with chart() as loaded:
        found = rendered(loaded, createSecrets=True, autoscaling={"enabled": True, "maxReplicas": 9})
    kinds = [each["kind"] for each in found]
    assert kinds.count("Secret") == 3 and kinds.count("HorizontalPodAutoscaler") == 1
    for each in found:
        for version in ("1.27", "1.34"):
            validate(each, version, strict=True)
    found[0]["spec"]["nonsense"] = 1
    with pytest.raises(Exception, match="nonsense"):
        validate(found[0], "1.34", strict=True)


def test_the_chart_makes_secrets_that_a_service_takes() -> None:
    with chart() as loaded:
        token, workers, tls = (
            found["data"] for found in rendered(loaded, createSecrets=True) if found["kind"] == "Secret"
        )
    secret = b64decode(token["token"]).decode()
    assert b64decode(workers["token"]).decode() == worker_token(secret)
    cert, key, root = (b64decode(tls[name]) for name in ("tls.crt", "tls.key", "ca.crt"))
    config = ps.service.DispatcherConfig(token=secret, tls_cert=cert, tls_key=key)
    with ps.service.DispatchServer(config) as dispatcher:
        for name in ("penstock-dispatcher.data.svc", "penstock-workers-3.penstock-workers.data.svc"):
            address = ps.service.ServiceAddress(dispatcher.target, secret, root, tls_name=name)
            assert ps.service.status(address, patience_seconds=0).datasets == 0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def container(found: dict[str, Any], changed: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """The command of a container, with other paths and names; it is ready."""
    (spec,) = found["spec"]["template"]["spec"]["containers"]
    command = spec["args"]
    for old, new in changed.items():
        command = [part.replace(old, new) for part in command]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("penstock: ")
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_containers_run_serve_and_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"token/token": b"0123456789abcdef" * 4, **certificates(tmp_path)}
    for name, content in secrets.items():
        (tmp_path / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "etc" / name).write_bytes(content)
        (tmp_path / "etc" / name).chmod(0o440)
    ports = [free_port() for _ in range(3)]
    changed = {
        "/etc/penstock": str(tmp_path / "etc"),
        "/var/lib/penstock": str(tmp_path),
        "penstock-dispatcher.$(POD_NAMESPACE).svc": "localhost",
        "$(POD_NAME).penstock-workers.$(POD_NAMESPACE).svc": "localhost",
        **{old: str(new) for old, new in zip(("5050", "5051", "9464"), ports, strict=True)},
    }
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "etc/token/token"))
    monkeypatch.setenv("PENSTOCK_TLS_ROOT", str(tmp_path / "etc/tls/ca.crt"))
    service = f"grpc+tls://localhost:{ports[0]}"
    first, second = of_kind("StatefulSet")
    with ExitStack() as stack:
        dispatcher = stack.enter_context(container(first, changed))
        ports.append(free_port())
        worker = stack.enter_context(container(second, {**changed, "9464": str(ports[3])}))
        read = ps.Dataset.range(100).apply(ps.service.distribute("distributed_epoch", service))
        assert [int(element) for element in read] == list(range(100))
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[2]}/metrics") as answer:
            assert "\npenstock_data_workers 1\n" in answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[3]}/readyz") as answer:
            assert answer.read() == b"ok\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(45) == 0
        (left,) = ps.service.status(service).workers
        assert left.left and not left.alive
        dispatcher.send_signal(signal.SIGTERM)
        assert dispatcher.wait(30) == 0
    assert list((tmp_path / "journal").iterdir())


def certificates(directory: Path) -> dict[str, bytes]:
    """What the secret penstock-tls holds, as `deploy/README.md` says how, for localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make a certificate")
    readme = (DEPLOY / "README.md").read_text().replace("\\\n", " ")
    command = re.search(r"^openssl req .*$", readme, re.MULTILINE)
    assert command is not None
    names = re.sub(r'"subjectAltName=[^"]*"', "subjectAltName=DNS:localhost", command[0])
    subprocess.run(names.split(), cwd=directory, check=True, capture_output=True)
    cert, key = (directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes()
    return {"tls/tls.crt": cert, "tls/tls.key": key, "tls/ca.crt": cert}


def test_the_commands_of_the_slurm_script_are_penstocks() -> None:
    script = (DEPLOY / "slurm" / "service.sh").read_text()
    subprocess.run(["sh", "-n", DEPLOY / "slurm" / "service.sh"], check=True)
    commands = re.findall(r"penstock ((?:dispatcher|worker) [^&']*--insecure)", script)
    assert [arguments(command.replace('"', "").split()).insecure for command in commands] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
def test_the_slurm_script_ends_its_service_and_as_its_training_did(tmp_path: Path, status: int) -> None:
    commands = {
        "scontrol": "echo node1",
        # The training ends when the service has started; of that, a step stays until it is killed.
        "srun": 'case "$*" in *penstock*) echo $$ >> steps; exec sleep 60;; '
        '*) while [ "$(wc -l < steps)" -lt 2 ]; do sleep 0.02; done; exit "$STATUS";; esac',
    }
    (tmp_path / "steps").touch()
    for name, command in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "STATUS": str(status),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-3]",
    }
    script = ["sh", str(DEPLOY / "slurm" / "service.sh"), "train.py"]
    done = subprocess.run(script, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, timeout=30)
    assert (done.returncode, done.stderr) == (status, b"")
    assert not list(tmp_path.glob(".penstock-token*"))
    for process in map(int, (tmp_path / "steps").read_text().split()):
        until(lambda process=process: not Path(f"/proc/{process}").exists())  # type: ignore[misc]
