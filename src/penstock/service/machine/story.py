"""What a dispatcher's log says of the changes that somebody may want to know of."""

from penstock.service.machine.spans import count
from penstock.service.machine.state import State
from penstock.service.machine.updates import (
    ConsumerGone,
    DatasetKept,
    EpochCreated,
    JobCreated,
    JobDropped,
    Stopping,
    Update,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
)


def told(state: State, update: Update) -> str | None:
    """A line about a change that is about to be made, or None where it is nothing special."""
    match update:
        case DatasetKept():
            return f"dataset {update.dataset_id}: registered, {len(update.definition):,} bytes"
        case WorkerJoined():
            return (
                f"worker {update.info.worker_id} at {update.info.endpoint.address}: joined, place {update.info.place}"
            )
        case WorkerLeaving():
            return f"worker {update.worker_id} at {_address(state, update.worker_id)}: leaves"
        case WorkerLost() if not state.workers[update.worker_id].leaving:
            return f"worker {update.worker_id} at {_address(state, update.worker_id)}: is lost"
        case EpochCreated():
            return f"epoch {update.number} of {_job(state, update.job_id)}: begun"
        case JobCreated() if update.name:
            return f"job {update.name!r}: begun, as job {update.job_id}"
        case JobDropped():
            return f"{_job(state, update.job_id)}: forgotten"
        case ConsumerGone():
            consumer = state.consumers[update.consumer_id]
            held = count(consumer.leased) + count(consumer.owed)
            return f"reader {update.consumer_id}: gone, gives back {held} positions" if held else None
        case Stopping():
            return "stopping" if update.mode == "now" else "stopping, as soon as readers are done"
        case _:
            return None


def _address(state: State, worker_id: int) -> str:
    return state.workers[worker_id].info.endpoint.address


def _job(state: State, job_id: int) -> str:
    job = state.jobs.get(job_id)
    return f"job {job.name!r}" if job is not None and job.name else f"job {job_id}"
