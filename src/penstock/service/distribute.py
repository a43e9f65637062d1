"""`ps.service.distribute` and related functions: datasets that the workers of a service produce."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from penstock.data.arguments import user_site
from penstock.data.dataset import Dataset, node_of
from penstock.data.fingerprint import fingerprint
from penstock.data.node import Node
from penstock.data.plan import described, make_plan, with_inputs
from penstock.errors import ElementError, InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, Options
from penstock.service.reader.distribute_options import DistributeOptions, check_name, check_ordered, checked_options
from penstock.service.reader.node import Distribute
from penstock.service.security.resolving import Service, checked_service
from penstock.service.transport.dispatcher_client import PATIENCE_SECONDS, DispatcherClient
from penstock.service.wire.blocks import spec_of_data, spec_to_data
from penstock.service.wire.compression import as_codec
from penstock.service.wire.definitions import to_bytes
from penstock.service.wire.dispatcher_messages import DatasetFound, DatasetRegistered, GetDataset, RegisterDataset
from penstock.service.wire.policy import CrossTrainerCache, ShardingPolicy
from penstock.service.wire.subjects import DatasetInfo, PassKind
from penstock.service.worker.cut import check_shared, cut, kind_of, without_last_guards
from penstock.service.worker.pass_nodes import check_policy
from penstock.spec import describe_mismatch


def distribute(
    processing_mode: ShardingPolicy | str,
    service: Service,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    compression: str | None = "AUTO",
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str = "AUTO",
    *,
    ordered: bool | None = None,
    skip_poison: bool = False,
    dispatcher_timeout_seconds: float = PATIENCE_SECONDS,
) -> Callable[[Dataset], Dataset]:
    """A transformation for `Dataset.apply`: operators before it run on the workers of a service, those after it here.

    Under "distributed_epoch", `take`, `skip`, `batch`, `enumerate` and `shuffle` mean the same as in process, on any
    number of workers; steps that must see the whole stream run in this process. `Dataset.explain` shows where each step
    runs. Your functions travel with the dataset.

    Args:
        processing_mode: "distributed_epoch" gives every element once; "parallel_epochs" gives it once from each worker,
            in that worker's order; or any `ShardingPolicy`.
        service: the dispatcher: "host:port", "protocol://host:port" or (protocol, "host:port"); by TLS
            "grpc+tls://host:port". The environment names the credentials: PENSTOCK_TOKEN_FILE, PENSTOCK_TLS_ROOT, and
            PENSTOCK_TLS_CERT with PENSTOCK_TLS_KEY. A service of this user's on this machine needs none of them. Also
            a service's object; a `ServiceAddress`, which holds the token itself; or a function without arguments that
            returns an address, and is asked again whenever the dispatcher is lost, because it may come up elsewhere.
        job_name: all datasets that are distributed under one name share its elements: each element goes to the first
            that needs it. Every iteration is an epoch of the job. None: a job for this dataset alone.
        consumer_index: for coordinated reads, which of the `num_consumers` this is. In every step all consumers get
            their elements from the same group of `num_consumers` consecutive elements of the same worker. An incomplete
            group at the end of a worker's elements is skipped.
        num_consumers: for coordinated reads, how many there are.
        max_outstanding_requests: how many elements to fetch in advance at most. None, or `ps.AUTOTUNE`: 64 MiB of them.
        data_transfer_protocol: how elements travel; None uses the fastest that both sides have.
        compression: "AUTO" lets each worker measure whether it pays; None; or a codec: "LZ4", "ZSTD", "SNAPPY".
        cross_trainer_cache: share the elements with other trainers, each of which gets all of them.
        target_workers: "ANY"; "LOCAL" for the workers in this process only. Under all policies but DYNAMIC each worker
            has its own part of the data, so "LOCAL" reads these parts only; with a `job_name`, "LOCAL" is allowed under
            DYNAMIC only. "AUTO" skips workers on other machines that have the tag COLOCATED.
        ordered: whether elements come in the same order as in process. None: yes, if one dataset reads alone under
            "distributed_epoch" and its options do not say deterministic=False.
        skip_poison: whether to skip an element whose function ends the processes of data workers, by a crash or
            for lack of memory, and to count it (`penstock status`). If False, a `ps.PoisonError` is raised in its
            place, after which the iterator continues.
        dispatcher_timeout_seconds: how long to wait for a dispatcher that cannot be reached, or cannot write its
            journal, before the iterator raises. Meanwhile the log has the reason. A dispatcher that has never
            answered is tried for a minute at most.

    Returns:
        A function from a dataset to a dataset.

    Raises:
        InvalidArgumentError: an argument that can never work, or some that contradict each other; when applied, a
            dataset that cannot be divided as asked.
        InvalidTypeError: an argument of the wrong type; when applied, a function that cannot be sent to workers.

    Example:
        >>> import penstock as ps
        >>> with ps.service.DispatchServer() as dispatcher:
        ...     address = dispatcher.target.split("://")[1]
        ...     with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)):
        ...         dataset = ps.Dataset.range(5).map(lambda x: x * x)
        ...         dataset = dataset.apply(ps.service.distribute("distributed_epoch", dispatcher.target))
        ...         print([int(x) for x in dataset.map(lambda x: x + 1)])
        [1, 2, 5, 10, 17]
    """
    settings = checked_options(
        "distribute",
        processing_mode=processing_mode,
        service=service,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        compression=compression,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        skip_poison=skip_poison,
        dispatcher_timeout_seconds=dispatcher_timeout_seconds,
    )
    check_ordered("distribute", settings, ordered)
    site = user_site()

    def transformation(dataset: Dataset) -> Dataset:
        return _distributed(dataset, settings, compression, ordered, site)

    return transformation


def _distributed(
    dataset: Dataset, settings: DistributeOptions, compression: str | None, ordered: bool | None, site: str
) -> Dataset:
    node, options = node_of("distribute", dataset), dataset.options()
    if ordered is None:
        ordered = settings.can_be_ordered and options.deterministic is not False
    check_policy(node, settings.policy)
    # Coordinated reads and shared caches get whole elements, from a worker that sees the whole stream.
    cutting = settings.policy is ShardingPolicy.DYNAMIC and not settings.by_element
    divided = cut(node, ordered=ordered) if cutting else None
    if divided is not None and not settings.alone:
        check_shared(divided)
    # Coordinated readers need an element each in every round, so there the workers skip failures.
    produced, counted = (node, []) if settings.by_element else without_last_guards(node)
    if divided is not None:
        produced, counted = divided.worker, list(divided.above)
    if settings.cross_trainer_cache is not None and produced.cardinality != INFINITE_CARDINALITY:
        raise InvalidArgumentError(
            f"{node.where()}: a cross_trainer_cache is for a dataset that never ends, because trainers come and go "
            f"and none of them could be told its end: add .repeat(), got cardinality {produced.cardinality}"
        )
    definition, info = _defined(produced, options, compression)
    source = Distribute(
        settings,
        info,
        settings.kind_of(produced),
        definition=definition,
        produced=produced,
        ordered=ordered,
        options=options,
        drawn_before=tuple(drawn.seed for drawn in produced.drawn_seeds),
        site=site,
    )
    over: Node = source
    for step in counted:
        over = with_inputs(step, [over])
    return Dataset(over, options)


def _defined(
    node: Node, options: Options, compression: str | None, element_spec: Any = None
) -> tuple[bytes, DatasetInfo]:
    """The definition of a dataset, and the information on it for the dispatcher."""
    kind, length = kind_of(node)
    definition = to_bytes(node, options)
    info = DatasetInfo(
        kind=kind,
        length=length,
        cardinality=node.cardinality,
        element_spec=element_spec,
        compression=compression,
        explanation=described(make_plan(node)),
        fingerprint=fingerprint(([*node.walk_all()], options)),
    )
    return definition, info


def register_dataset(
    service: Service, dataset: Dataset, compression: str | None = "AUTO", dataset_id: str | None = None
) -> str:
    """Keep a dataset at a service, for `from_dataset_id` in any process.

    Args:
        dataset_id: its name; None derives it from the content, so that equal datasets have the same one.

    Returns:
        The dataset's id.

    Raises:
        InvalidArgumentError: an empty or taken `dataset_id`, a codec that is not known.
        ServiceError: the dispatcher cannot be reached.

    Example:
        >>> import penstock as ps
        >>> with ps.service.DispatchServer() as dispatcher:
        ...     ps.service.register_dataset(dispatcher.target, ps.Dataset.range(10), dataset_id="ten")
        'ten'
    """
    node = node_of("register_dataset", dataset)
    as_codec(compression)
    if dataset_id is not None:
        check_name("register_dataset", "dataset_id", dataset_id)
    try:
        spec = spec_to_data(dataset.element_spec)
    except ElementError:  # it is empty, so its specification is not known
        spec = None
    definition, info = _defined(node, dataset.options(), compression, spec)
    reply = _ask_dispatcher(
        checked_service("register_dataset", service),
        RegisterDataset(definition=definition, info=info, dataset_id=dataset_id or ""),
    )
    assert isinstance(reply, DatasetRegistered)
    return reply.dataset_id


def from_dataset_id(
    processing_mode: ShardingPolicy | str,
    service: Service,
    dataset_id: str,
    element_spec: Any = None,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str = "AUTO",
    *,
    ordered: bool | None = None,
    skip_poison: bool = False,
    dispatcher_timeout_seconds: float = PATIENCE_SECONDS,
) -> Dataset:
    """The dataset that `register_dataset` gave to a service, from any process.

    The arguments are those of `distribute`. Compression is as it was registered.

    Args:
        dataset_id: what `register_dataset` returned.
        element_spec: the expected specification of the elements; None takes the registered one.

    Raises:
        InvalidArgumentError: as `distribute`; an id that the dispatcher does not know; another `element_spec`.
        ServiceError: the dispatcher cannot be reached.

    Example:
        >>> import penstock as ps
        >>> with ps.service.DispatchServer() as dispatcher:
        ...     address = dispatcher.target.split("://")[1]
        ...     with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)):
        ...         name = ps.service.register_dataset(dispatcher.target, ps.Dataset.range(4))
        ...         dataset = ps.service.from_dataset_id("distributed_epoch", dispatcher.target, name)
        ...         print([int(x) for x in dataset])
        [0, 1, 2, 3]
    """
    check_name("from_dataset_id", "dataset_id", dataset_id)
    settings = checked_options(
        "from_dataset_id",
        processing_mode=processing_mode,
        service=service,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        compression=None,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        skip_poison=skip_poison,
        dispatcher_timeout_seconds=dispatcher_timeout_seconds,
    )
    check_ordered("from_dataset_id", settings, ordered)
    found = _ask_dispatcher(settings.service, GetDataset(dataset_id=dataset_id, with_definition=False))
    assert isinstance(found, DatasetFound)
    info = found.info
    registered = None if info.element_spec is None else spec_of_data(info.element_spec)
    if element_spec is not None and registered is not None:
        mismatch = describe_mismatch(element_spec, registered)
        if mismatch is not None:
            raise InvalidArgumentError(
                f"from_dataset_id(element_spec=...): {dataset_id!r} has other elements: {mismatch}"
            )
    kind: PassKind = (
        "sequence" if (settings.by_element or settings.policy.static) and info.kind == "groups" else info.kind
    )
    source = Distribute(
        replace(settings, codec=as_codec(info.compression)),
        info,
        kind,
        dataset_id=dataset_id,
        declared_spec=registered if element_spec is None else element_spec,
        ordered=settings.can_be_ordered if ordered is None else ordered,
        site=user_site(),
    )
    return Dataset(source)


def _ask_dispatcher(service: Service, message: Any) -> Any:
    with closing(DispatcherClient(service)) as client:
        return client.ask(message)
