"""Training, and parameter servers on Ray, on machines of their own: nothing resolves their names, and a cable fails.

Usage: machines.py training | servers. It needs what `network.py` does, and says so where that is missing.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from network import Machine, Network, go_inside

CUT_SECONDS = 4.0

TRAINING = """
import os
import keras, numpy as np
import penstock as ps
strategy = ps.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(960, 4)).astype(np.float32)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.001), loss="mse")
rows = ps.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).shuffle(960, seed=3).batch(48)
for epoch in range(60):
    loss = model.fit(rows, epochs=1, verbose=0).history["loss"][0]
    if epoch == 1 and "TF_CONFIG" in os.environ and '"index": 0' in os.environ["TF_CONFIG"]:
        print("begun", flush=True)
print(f"{loss:.5f}")
"""

SERVERS = """
import sys
import numpy as np, optax, ray
import penstock as ps
ray.init(address="auto", log_to_driver=False)
keys = sys.argv[1]
tls = dict(tls_cert=f"{keys}/crt", tls_key=f"{keys}/key", tls_root=f"{keys}/crt")
engine = ps.ray.ParameterServers({"num_cpus": 0.2, "resources": {"far": 0.1}}, {"num_cpus": 0.2}, **tls)
with ps.ParameterServerStrategy(2, 1, engine) as strategy:
    coordinator = ps.ClusterCoordinator(strategy)
    variables = strategy.create_variables(np.zeros(50_000, np.float32), optax.sgd(-1.0))
    per_worker = coordinator.create_per_worker_dataset(
        lambda context: ps.Dataset.range(10_000).shard(context.num_input_pipelines, context.input_pipeline_id)
    )
    iterator = iter(per_worker)

    def step(elements):
        variables.push(np.ones(50_000, np.float32))
        return int(next(elements))

    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(1500)]
    values[50].fetch()
    print("begun", flush=True)
    coordinator.join()
    read = sorted(coordinator.fetch(values))
    own = [[element for element in read if element % 2 == worker] for worker in (0, 1)]
    whole = all(part == list(range(worker, worker + 2 * len(part), 2)) for worker, part in enumerate(own))
    print(sorted(set(variables.read().tolist())), whole)
"""


def started(machine: Machine, name: str, command: Sequence[str], **variables: str) -> "subprocess.Popen[str]":
    """A program on a machine whose name nothing resolves."""
    there = ["nsenter", "--target", str(machine.home.namespace), "--net", "unshare", "--uts"]
    named = [*there, "sh", "-c", 'hostname "$0" && exec "$@"', name, *command]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"} | variables
    return subprocess.Popen(named, stdout=subprocess.PIPE, text=True, env=environment)


def result(program: "subprocess.Popen[str]", machine: Machine) -> str:
    """The last line of a program, one of whose machines loses its cable for some seconds once it has begun."""
    assert program.stdout is not None
    lines = []
    for line in program.stdout:
        lines.append(line.strip())
        if lines[-1] == "begun":
            machine.cut()
            threading.Timer(CUT_SECONDS, machine.mend).start()
    if program.wait():
        raise SystemExit(f"a program ended with status {program.returncode}")
    return lines[-1]


def training(network: Network) -> str:
    """The last losses of three workers, and that of one which has trained alone."""
    machines = [network.machine() for _ in range(3)]
    workers = [f"{machine.home.host}:5000" for machine in machines]
    programs = []
    for number, machine in enumerate(machines):
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": number}}
        command = [sys.executable, "-c", TRAINING]
        programs.append(started(machine, f"machine-{number}", command, TF_CONFIG=json.dumps(cluster)))
    programs.append(started(machines[0], "alone", [sys.executable, "-c", TRAINING]))
    return " ".join(result(program, machines[2]) for program in programs)


def servers(network: Network, keys: Path) -> str:
    """What was read of variables to which each of 1,500 functions has added one, and whether all elements were read."""
    near, far = network.machine(), network.machine()
    ray = [str(Path(sys.executable).parent / "ray"), "start"]
    # Ray's sockets lie below, and their paths may have only 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="r") as short:
        head = ["--head", "--port=6379", "--num-cpus=2", "--include-dashboard=false"]
        joins = [f"--address={near.home.host}:6379", "--num-cpus=2", '--resources={"far": 1}']
        for number, (machine, options) in enumerate([(near, head), (far, joins)]):
            own = [f"--node-ip-address={machine.home.host}", f"--temp-dir={short}/{number}"]
            node = started(machine, f"machine-{number}", [*ray, *options, *own], RAY_AUTH_MODE="disabled")
            node.communicate()
            if node.returncode:
                raise SystemExit("Ray has not started")
        program = [sys.executable, "-c", SERVERS, str(keys)]
        return result(started(near, "machine-0", program, RAY_AUTH_MODE="disabled"), far)


def main() -> None:
    go_inside()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        network = Network(1, keys)
        said = training(network) if sys.argv[1] == "training" else servers(network, keys)
        sys.stdout.write(f"{said}\n")


if __name__ == "__main__":
    main()
