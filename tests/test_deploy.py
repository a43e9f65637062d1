"""What `deploy/` holds fits together, and its commands are those of penstock."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import _parser
from penstock.service import DispatcherConfig, WorkerConfig

DEPLOY = Path(__file__).parent.parent / "deploy"
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


def objects() -> list[dict[str, Any]]:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return [
        found for file in files for found in yaml.safe_load_all(file.read_text()) if found["kind"] != "Kustomization"
    ]


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


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_kustomization_renders() -> None:
    done = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    assert sorted(found["kind"] for found in rendered) == sorted(found["kind"] for found in objects())
    assert done.stdout.count("image: registry.example/penstock:1") == 2


def test_the_commands_of_the_slurm_script_are_penstocks() -> None:
    script = (DEPLOY / "slurm" / "service.sh").read_text()
    subprocess.run(["sh", "-n", DEPLOY / "slurm" / "service.sh"], check=True)
    commands = re.findall(r"penstock ((?:dispatcher|worker) [^&']*--insecure)", script)
    assert [arguments(command.replace('"', "").split()).insecure for command in commands] == [True, True]
