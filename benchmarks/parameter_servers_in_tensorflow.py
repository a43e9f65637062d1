"""TensorFlow's parameter servers on this machine: for each number on a line of the input so many closures, and seconds.

`benchmarks.parameter_servers` starts it with an interpreter that has TensorFlow, where penstock is not. A closure reads
the variables of a linear model, computes the gradients of four rows, and applies them by SGD.
"""

import os
import socket
import subprocess
import sys
import time

import tensorflow as tf

WORKERS, SERVERS = 2, 1


def main() -> None:
    """Start the servers, and measure what is asked for until the input ends."""
    ports = []
    with_ports = [socket.socket() for _ in range(WORKERS + SERVERS)]
    for one in with_ports:
        one.bind(("localhost", 0))
        ports.append(one.getsockname()[1])
    for one in with_ports:
        one.close()
    addresses = [f"localhost:{port}" for port in ports]
    cluster = {"worker": addresses[:WORKERS], "ps": addresses[WORKERS:]}
    tasks = [(job, index) for job in cluster for index in range(len(cluster[job]))]
    servers = [subprocess.Popen([sys.executable, __file__, job, str(index), *addresses]) for job, index in tasks]
    try:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
        measure(tf.distribute.ParameterServerStrategy(resolver))
    finally:
        for server in servers:
            server.kill()
        os._exit(0)  # its threads would wait for the servers


def serve(job: str, index: str, *addresses: str) -> None:
    """As one of the worker or server processes."""
    cluster = tf.train.ClusterSpec({"worker": addresses[:WORKERS], "ps": addresses[WORKERS:]})
    tf.distribute.Server(cluster, job_name=job, task_index=int(index), protocol="grpc").join()


def measure(strategy: tf.distribute.ParameterServerStrategy) -> None:
    """Answer lines with the seconds that so many closures take."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = [tf.Variable(tf.zeros(3)), tf.Variable(0.0)]
    x = tf.ones((4, 3))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights[0]) + weights[1] - 1) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)

    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            coordinator.schedule(step)
        coordinator.join()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(*sys.argv[1:])
    else:
        main()
