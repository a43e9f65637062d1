"""Everything that can be wrong about a call is said at the call, before anything is asked of anybody."""

import threading

import pytest

import penstock as ps

NOBODY = "localhost:1"


def distribute(*args: object, **arguments: object) -> object:
    return ps.service.distribute(*(args or ("distributed_epoch", NOBODY)), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["dynamics", "", None, 1])
def test_a_processing_mode_that_is_none(mode: object) -> None:
    with pytest.raises(ps.InvalidArgumentError, match='"parallel_epochs", "distributed_epoch", "OFF", "DYNAMIC"'):
        distribute(mode, NOBODY)


@pytest.mark.parametrize(
    ("service", "error", "message"),
    [
        (3, ps.InvalidTypeError, "service"),
        ("", ps.InvalidArgumentError, "empty"),
        ("grpc://a://b:1", ps.InvalidArgumentError, "grpc://a://b:1"),
        ("carrier-pigeon://b:1", ps.InvalidArgumentError, "carrier-pigeon"),
        (("grpc",), ps.InvalidTypeError, "protocol"),
    ],
)
def test_a_service_that_is_none(service: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        distribute("distributed_epoch", service)


@pytest.mark.parametrize(("name", "error"), [("", ps.InvalidArgumentError), (3, ps.InvalidTypeError)])
def test_a_job_name_that_is_none(name: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="job_name"):
        distribute(job_name=name)


@pytest.mark.parametrize("alone", ["consumer_index", "num_consumers"])
def test_consumer_index_and_num_consumers_belong_together(alone: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=f"belong together, got only {alone}"):
        distribute(job_name="job", **{alone: 1})


def test_an_index_out_of_range() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="must be less than num_consumers=2, got 2"):
        distribute(job_name="job", consumer_index=2, num_consumers=2)


@pytest.mark.parametrize("number", [-1, 0])
def test_no_consumers(number: int) -> None:
    with pytest.raises(ps.InvalidArgumentError, match="num_consumers"):
        distribute(job_name="job", consumer_index=0, num_consumers=number)


def test_coordinated_reads_need_a_name() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="coordinated reads need a job_name"):
        distribute(consumer_index=0, num_consumers=2)


def test_coordinated_reads_of_local_workers() -> None:
    with pytest.raises(ps.InvalidArgumentError, match='target_workers="LOCAL"'):
        distribute(job_name="job", consumer_index=0, num_consumers=2, target_workers="local")


@pytest.mark.parametrize("policy", ["OFF", "FILE", "DATA", "FILE_OR_DATA", "HINT"])
def test_readers_of_a_job_share_no_parts_of_local_workers(policy: str) -> None:
    """Each host read the parts of all of them, which those of the job made."""
    with pytest.raises(ps.InvalidArgumentError, match="readers of the job 'job' share those of all: omit"):
        distribute(ps.service.ShardingPolicy[policy], NOBODY, job_name="job", target_workers="LOCAL")


@pytest.mark.parametrize("policy", ["FILE", "DATA", "FILE_OR_DATA", "HINT"])
def test_coordinated_reads_under_a_static_policy(policy: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=f"got {policy}"):
        distribute(ps.service.ShardingPolicy[policy], NOBODY, job_name="job", consumer_index=0, num_consumers=2)


@pytest.mark.parametrize("number", [0, -2])
def test_a_limit_that_lets_nothing_through(number: int) -> None:
    with pytest.raises(ps.InvalidArgumentError, match="max_outstanding_requests"):
        distribute(max_outstanding_requests=number)


def test_autotune_is_no_limit() -> None:
    assert callable(distribute(max_outstanding_requests=ps.AUTOTUNE))


def test_a_protocol_that_nobody_speaks() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="data_transfer_protocol"):
        distribute(data_transfer_protocol="smoke")


@pytest.mark.parametrize("compression", ["GZIP", 3, ""])
def test_a_codec_that_nobody_has(compression: object) -> None:
    with pytest.raises(ps.InvalidArgumentError, match='compression must be "AUTO", None or one of "LZ4"'):
        distribute(compression=compression)


@pytest.mark.parametrize("target", ["NEAR", None])
def test_target_workers_that_are_none(target: object) -> None:
    with pytest.raises(ps.InvalidArgumentError, match='must be "AUTO", "ANY" or "LOCAL"'):
        distribute(target_workers=target)


def test_a_trainer_without_a_name() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="trainer_id=.*must not be empty"):
        ps.service.CrossTrainerCache("")
    with pytest.raises(ps.InvalidTypeError, match="trainer_id"):
        ps.service.CrossTrainerCache(3)  # type: ignore[arg-type]


def test_a_cache_that_is_none() -> None:
    with pytest.raises(ps.InvalidTypeError, match="takes a ps.service.CrossTrainerCache, got 'a'"):
        distribute(job_name="job", cross_trainer_cache="a")


def test_a_cache_needs_a_name() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="a cross_trainer_cache needs a job_name"):
        distribute(cross_trainer_cache=ps.service.CrossTrainerCache("a"))


def test_a_cache_excludes_coordinated_reads() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="exclude each other"):
        distribute(
            job_name="job",
            consumer_index=0,
            num_consumers=1,
            cross_trainer_cache=ps.service.CrossTrainerCache("a"),
        )


def test_an_infinite_dataset_is_needed_by_a_cache() -> None:
    transformation = ps.service.distribute(
        "parallel_epochs", NOBODY, job_name="job", cross_trainer_cache=ps.service.CrossTrainerCache("a")
    )
    with pytest.raises(ps.InvalidArgumentError, match=r"never ends.*repeat\(\)"):
        ps.Dataset.range(3).apply(transformation)


@pytest.mark.parametrize("arguments", [{"job_name": "job"}, {}])
def test_an_order_where_there_is_none(arguments: dict[str, str]) -> None:
    mode = "distributed_epoch" if arguments else "parallel_epochs"
    with pytest.raises(ps.InvalidArgumentError, match="ordered=True"):
        distribute(mode, NOBODY, ordered=True, **arguments)


def test_a_function_that_cannot_travel_is_named_at_the_call() -> None:
    lock = threading.Lock()

    def locked(x: int) -> int:
        with lock:
            return x

    with pytest.raises(ps.InvalidTypeError, match="lock"):
        ps.Dataset.range(3).map(locked).apply(ps.service.distribute("distributed_epoch", NOBODY))


def test_a_shared_job_of_what_must_see_the_whole_stream() -> None:
    transformation = ps.service.distribute("distributed_epoch", NOBODY, job_name="job")
    with pytest.raises(ps.InvalidArgumentError, match=r"take\(count=2\).*must see all elements"):
        ps.Dataset.range(9).filter(lambda x: x % 2 == 0).take(2).apply(transformation)


def test_what_is_no_dataset() -> None:
    with pytest.raises(ps.InvalidTypeError, match="distribute takes a ps.Dataset, got 3"):
        ps.service.distribute("distributed_epoch", NOBODY)(3)  # type: ignore[arg-type]
