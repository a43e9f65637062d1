"""Makes errors about the arguments of a call name the command-line options that they came from."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import InvalidArgumentError

_OPTIONS: Final = {
    "service": "HOST:PORT",
    "dispatcher_address": "--dispatcher",
    "worker_addresses": "--worker-address",
    "insecure=True": "--insecure",
}
_CALL: Final = re.compile(r"^\w+(?:\((\w+)=(\S*)\)|: )")
_NAME: Final = re.compile(r"\b(?:token_file|tls_cert|tls_key|tls_client_ca|insecure=True)(?!\w)")


@contextmanager
def named_as_options() -> Iterator[None]:
    """Within this context, errors about the arguments of a call name the options that they came from."""
    try:
        yield
    except InvalidArgumentError as error:
        message = _CALL.sub(_as_option, str(error), count=1)
        raise InvalidArgumentError(_NAME.sub(lambda name: _option(name[0]), message)) from error


def _as_option(call: re.Match[str]) -> str:
    """`Call(port=...)` as `--port`, `Call(host='0.0.0.0')` as `--host 0.0.0.0`; `Call: ` as nothing."""
    name, value = call.groups()
    if name is None:
        return ""
    return _option(name) if value == "..." else _option(name) + " " + value.strip("'")


def _option(name: str) -> str:
    return _OPTIONS.get(name, "--" + name.replace("_", "-"))
