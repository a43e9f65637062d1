"""Training, and parameter servers on Ray, on machines of their own: nothing resolves their names, and a cable fails.

Usage: machines.py training | ipv6 | servers | torchrun. It needs what `network.py` does, and says so where that is
missing. With "ipv6" the machines that train have no other addresses. With "torchrun", an agent of torchrun runs on each
of two machines and is lost with its rank; torchrun itself needs their names, so these resolve.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from network import Machine, Network, go_inside

from penstock.addresses import joined_address

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
    workers = [joined_address(machine.home.host, 5000) for machine in machines]
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


def torchrun(network: Network, folder: str) -> str:
    """Whether every row counted once, and how many ranks there were, one after the other."""
    machines = [network.machine(), network.machine()]
    first = machines[0].home.host

    def agent(machine: Machine) -> "subprocess.Popen[str]":
        there = ["nsenter", "--target", str(machine.home.namespace), "--net"]
        options = [
            "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=4", "--rdzv-backend=c10d", "--rdzv-id=1",
            f"--rdzv-endpoint={first}:29500", f"--local-addr={machine.home.host}",
            f"--rdzv-conf=last_call_timeout=3,is_host={int(machine is machines[0])}",
        ]  # fmt: skip
        program = [str(Path(__file__).parents[1] / "pytorch" / "elastic.py"), folder, "worker", "5", "agent", "12"]
        # A new agent is let in only so (docs/many-machines.md); gloo would take the address of the machine's name.
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [*there, sys.executable, "-m", "torch.distributed.run", *options, *program],
            stdout=subprocess.PIPE, text=True, env=os.environ | variables,
        )  # fmt: skip

    agents = [agent(machine) for machine in machines]
    lost = agents.pop()
    lost.communicate()
    if lost.returncode != -signal.SIGKILL:
        raise SystemExit(f"the agent that is killed ended with status {lost.returncode}")
    alone = Path(folder) / "alone"
    while not alone.exists() and agents[0].poll() is None:
        time.sleep(0.2)
    agents.append(agent(machines[1]))
    said = [output for one in agents for output in one.communicate()[0].splitlines()]
    return " ".join(said)


def main() -> None:
    go_inside()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        network = Network(1, keys, ipv6=sys.argv[1] == "ipv6")
        if sys.argv[1] == "servers":
            said = servers(network, keys)
        elif sys.argv[1] == "torchrun":
            said = torchrun(network, folder)
        else:
            said = training(network)
        sys.stdout.write(f"{said}\n")


if __name__ == "__main__":
    main()
