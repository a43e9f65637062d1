"""A service that is not at a fixed address: something says where its dispatcher is, and with which token."""

import re
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

TOKEN = "a-token-of-24-characters"


def test_a_dispatcher_may_come_up_elsewhere(tmp_path: Path) -> None:
    config = ps.service.DispatcherConfig(work_dir=tmp_path, token=TOKEN, heartbeat_seconds=0.1)
    first = ps.service.DispatchServer(config)
    where = [first.target]

    def resolve() -> ps.service.ServiceAddress:
        return ps.service.ServiceAddress(where[-1], token=TOKEN)

    worker = ps.service.WorkerConfig(dispatcher_address=resolve, token=TOKEN, heartbeat_seconds=0.1)
    with ps.service.WorkerServer(worker):
        dataset = ps.Dataset.range(3000).shuffle(3000, seed=1)
        elements = iter(dataset.apply(ps.service.distribute("distributed_epoch", resolve, job_name="one")))
        taken = [int(next(elements)) for _ in range(10)]
        first.stop()
        with ps.service.DispatchServer(config) as second:
            assert second.target != where[0]
            where.append(second.target)
            taken += [int(element) for element in elements]
    assert sorted(taken) == list(range(3000))


def test_the_object_of_a_service_is_where_it_is() -> None:
    with ps.service.DispatchServer(ps.service.DispatcherConfig(token=TOKEN)) as dispatcher:
        address = ps.service.ServiceAddress(dispatcher.target, token=TOKEN)
        assert ps.service.status(address).workers == []
        assert ps.service.connect(address).status().datasets == 0
        with pytest.raises(ps.errors.ServiceError, match="token"):
            ps.service.status(ps.service.ServiceAddress(dispatcher.target, token="another-token-of-24-chars"))


def test_an_address_that_does_not_answer_is_named_and_not_what_resolved_it() -> None:
    with pytest.raises(ps.errors.ServiceError, match="the dispatcher at localhost:1 cannot be reached"):
        ps.service.status(lambda: "localhost:1", patience_seconds=0)


def _failing() -> str:
    raise KeyError("no such service")


@pytest.mark.parametrize(
    ("resolver", "kind", "message"),
    [
        (
            _failing,
            ps.errors.ServiceError,
            "the address of the dispatcher cannot be resolved by _failing: KeyError('no such service'). It was",
        ),
        (lambda: 7, ps.InvalidTypeError, "a resolver must return where a dispatcher is, a string or a ps.service.Serv"),
        (lambda: "nowhere", ps.InvalidArgumentError, 'needs the address of a dispatcher as "host:port"'),
    ],
)
def test_resolvers_that_fail_are_named(resolver: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        ps.service.status(resolver, patience_seconds=0)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"token": "short"}, ps.InvalidArgumentError, "DispatcherConfig(token=...) must have at least 16 letters"),
        ({"token": b"0123456789abcdef"}, ps.InvalidTypeError, "DispatcherConfig(token=...) takes a string, got an ob"),
        ({"token": TOKEN, "token_file": "x"}, ps.InvalidArgumentError, "give the token itself or token_file, not both"),
    ],
)
def test_tokens_that_cannot_be_are_refused(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        ps.service.DispatcherConfig(**arguments)


def test_secrets_are_not_shown() -> None:
    shown = repr(ps.service.DispatcherConfig(token=TOKEN, tls_cert=b"certificate", tls_key=b"a private key"))
    assert TOKEN not in shown
    assert "private" not in shown
    assert TOKEN not in repr(ps.service.ServiceAddress("a:1", token=TOKEN))
