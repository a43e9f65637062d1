"""The protocol's number changes with the messages that it stands for."""

import hashlib
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import inspect

from penstock.service.wire import block_messages, dispatcher_messages, envelope

DIGESTS = {
    1: "780bc56eaceeb3cb",
    2: "0d5fbcbb61d26256",
    3: "38e959c32aff1721",
    4: "766744abff7e5960",
    5: "1514d1cce4a97085",
    6: "7adbd1417ccd5915",
    7: "7adbd1417ccd5915",  # summaries of full-pass analysis are arrays of bytes
    8: "7adbd1417ccd5915",  # a request that must be the only one of its kind may be answered by a pause
    9: "dd5e5be7bbdaea9e",
    10: "d78eff40767d34df",
    11: "48f0fc82cbe15307",
    12: "df5c07b0e99d9e04",
    13: "63904379bec3ce8b",
    14: "561cbc07b2bccd81",
    15: "c24e9b4a6911caff",
}
"""What the messages of each protocol are, by its number."""

ALL = (
    envelope._Envelope,
    dispatcher_messages.ToDispatcher,
    dispatcher_messages.FromDispatcher,
    block_messages.FromReader,
    block_messages.FromWorker,
)


def test_whoever_changes_a_message_raises_the_protocols_number() -> None:
    found = digest(*ALL)
    if DIGESTS.get(envelope.PROTOCOL) == found:
        return
    next_number = max(DIGESTS) + 1
    pytest.fail(
        "processes of different versions would take each other's messages for something else: a message has changed, "
        f"or PROTOCOL has. Let PROTOCOL in src/penstock/service/wire/envelope.py be {next_number}, and add to DIGESTS "
        f'this file the line `{next_number}: "{found}",`'
    )


def digest(*unions: Any) -> str:
    """What tells messages from others with other names, tags, fields, types, limits or defaults."""
    told = "\n".join(_words(inspect.type_info(union)) for union in unions)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _words(info: Any) -> str:
    """A type, without what does not travel: the names, modules and docstrings of classes."""
    if isinstance(info, inspect.StructType):
        fields = ", ".join(_field(field) for field in info.fields)
        return f"{info.tag_field} {info.tag} {info.array_like} {info.forbid_unknown_fields} ({fields})"
    if isinstance(info, inspect.Type):
        parts = {name: getattr(info, name) for name in info.__struct_fields__}
        given = ", ".join(f"{name}={_words(part)}" for name, part in sorted(parts.items()) if part is not None)
        return f"{type(info).__name__}({given})"
    if isinstance(info, tuple):
        return f"({', '.join(map(_words, info))})"
    return repr(info)


def _field(field: inspect.Field) -> str:
    default = "" if field.required else repr(_default(field))
    return f"{field.encode_name}: {_words(field.type)} = {default}"


def _default(field: inspect.Field) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def made(*fields: Any, **options: Any) -> str:
    return digest(msgspec.defstruct("Message", fields, **{"tag": "message", **options}) | None)


@pytest.mark.parametrize(
    "changed",
    [
        made(("other", int, 0)),
        made(("number", float, 0)),
        made(("number", int, 1)),
        made(("number", int)),
        made(("number", Annotated[int, msgspec.Meta(ge=0)], 0)),
        made(("number", int, 0), ("other", list[int], msgspec.field(default_factory=list))),
        made(("number", int, 0), tag="other"),
        made(("number", int, 0), array_like=True),
    ],
)
def test_every_change_of_a_message_is_noticed(changed: str) -> None:
    assert changed != made(("number", int, 0))
    assert made(("number", int, 0), module="elsewhere") == made(("number", int, 0))
    assert digest(msgspec.defstruct("Other", [("number", int, 0)], tag="message") | None) == made(("number", int, 0))
