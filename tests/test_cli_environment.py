"""Options of the servers in the environment."""

from typing import Any

import pytest

from penstock.cli import _parser, main


def options(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *arguments: str) -> Any:
    for name, value in environment.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    return _parser().parse_args(list(arguments))


def test_options_of_every_kind_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "PORT": "5055",
        "HOST": "0.0.0.0",
        "LOG_FORMAT": "json",
        "LEASE_SECONDS": "2.5",
        "WORKER_ADDRESS": "host1:1 host2:2",
        "INSECURE": "1",
        "METRICS_PORT": "9464",
    }
    found = options(monkeypatch, environment, "dispatcher")
    assert (found.port, found.host, found.log_format, found.lease_seconds) == (5055, "0.0.0.0", "json", 2.5)
    assert (found.worker_address, found.insecure, found.metrics_port) == (["host1:1", "host2:2"], True, 9464)
    assert found.log_level == "info"


def test_the_command_line_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"LOG_LEVEL": "debug", "TAG": "ONE TWO", "DISPATCHER": "there:1", "INSECURE": "0"}
    found = options(monkeypatch, environment, "worker", "--log-level=error", "--tag", "THREE")
    assert (found.log_level, found.tag, found.dispatcher, found.insecure) == ("error", ["THREE"], "there:1", False)


def test_a_worker_of_a_program_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(monkeypatch, {"PORT": "5055"}, "worker", "--dispatcher=here:1", "--until-input-ends")
    assert found.port == 0


def test_what_kubernetes_says_of_a_service_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options(monkeypatch, {"PORT": "tcp://10.0.0.1:5050"}, "dispatcher").port == 5050


def test_other_commands_do_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options(monkeypatch, {"WATCH": "1", "INTERVAL": "no"}, "status", "here:1").watch is False


def test_an_error_says_that_the_environment_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "loud")
    with pytest.raises(SystemExit) as ended:
        main(["dispatcher"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "argument --log-level: invalid choice: 'loud'" in told
    assert "(the environment says --log-level=loud)" in told
