"""JAX devices of a strategy, checked when it is made, and transfers that JAX's guard of transfers allows."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax

from penstock.errors import InvalidArgumentError, InvalidTypeError

Given = ParamSpec("Given")
Result = TypeVar("Result")
_GUARDS = [f"jax_transfer_guard_{way}" for way in ("host_to_device", "device_to_device", "device_to_host")]


def moving_explicitly(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function whose transfers count as `jax.device_put` does: JAX_TRANSFER_GUARD=disallow refuses implicit ones."""

    @wraps(function)
    def explicit(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        for guard in _GUARDS:
            if getattr(jax.config, guard) in ("disallow", "log"):
                with jax.transfer_guard("allow"):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return explicit


def checked_devices(devices: Sequence[Any] | None) -> list[jax.Device]:
    """The devices that `devices` names; all local ones of the default platform if it is None.

    Raises:
        InvalidTypeError: something that is no device.
        InvalidArgumentError: no devices, unknown ones, one of them twice, or several platforms.
    """
    if devices is None:
        return list(jax.local_devices())
    if isinstance(devices, (str, jax.Device)) or not isinstance(devices, Sequence):
        raise InvalidTypeError(
            f'MirroredStrategy(devices=...) takes a list of devices or names such as "cpu:0", got {devices!r}'
        )
    found = [_device(device) for device in devices]
    if not found:
        raise InvalidArgumentError("MirroredStrategy(devices=...) takes at least one device, got an empty list")
    if len(set(found)) < len(found):
        raise InvalidArgumentError(f"MirroredStrategy(devices=...) takes each device once, got {list(devices)!r}")
    if len({device.platform for device in found}) > 1:
        raise InvalidArgumentError(
            f"MirroredStrategy(devices=...) takes devices of one platform, got {list(devices)!r}"
        )
    return found


def _device(device: Any) -> jax.Device:
    if isinstance(device, jax.Device):
        return device
    if not isinstance(device, str):
        raise InvalidTypeError(
            f'MirroredStrategy(devices=...) takes JAX devices or names such as "cpu:0", got {device!r}'
        )
    platform, _, number = device.lower().partition(":")
    try:
        known = jax.local_devices(backend=platform)
    except RuntimeError as error:
        raise InvalidArgumentError(f"MirroredStrategy(devices=...) got {device!r}: {error}") from error
    if not number.isdigit() or int(number) >= len(known):
        raise InvalidArgumentError(
            f"MirroredStrategy(devices=...) got {device!r}, but the {platform} devices here are {platform}:0 to "
            f"{platform}:{len(known) - 1}"
        )
    return known[int(number)]
