"""A data service of Ray actors, on a Ray cluster that is really started, once."""

import os
import signal
from collections.abc import Iterator

import pytest
import ray
from until import until

import penstock as ps

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets and files of its own to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def test_nothing_is_lost_when_a_worker_and_the_dispatcher_are_killed() -> None:
    with ps.ray.service(num_workers=1, worker_options={"num_cpus": 0.5}) as service:
        dataset = ps.Dataset.range(4000).shuffle(4000, seed=1)
        elements = iter(dataset.apply(ps.service.distribute("distributed_epoch", service)))
        taken = [int(next(elements)) for _ in range(5)]
        for actor in (service._workers[0], service._dispatcher):
            process = ray.get(actor.process.remote())
            os.kill(process, signal.SIGKILL)
            taken += [int(next(elements)) for _ in range(100)]
        taken += [int(element) for element in elements]
        assert taken == [int(element) for element in dataset]
        service.scale(2)
        until(lambda: sum(worker.alive for worker in service.status().workers) == 2)
        service.scale(1)
        until(lambda: sum(worker.alive for worker in service.status().workers) == 1)


def test_actors_that_cannot_be_placed_are_said() -> None:
    with pytest.raises(ps.ServiceError, match=r"Ray has not started the data workers .* needs {'num_cpus': 64}"):
        ps.ray.service(1, worker_options={"num_cpus": 64}, start_timeout_seconds=3)


def test_a_name_that_no_service_has_is_said() -> None:
    with pytest.raises(ps.ServiceError, match="where the dispatcher is cannot be found out by ray://nobody: ValueErro"):
        ps.service.status("ray://nobody", patience_seconds=0)
