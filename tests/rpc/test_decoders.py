"""Decoders of messages, which threads ask for at the same time."""

import subprocess
import sys

_PROGRAM = """
import threading
import msgspec
from penstock.rpc.frames import decoder_of

def first_meeting():  # msgspec calls this where it looks at Inner for the first time, with Outer half known to it
    others.append(threading.Thread(target=lambda: found.append(decoder_of(Outer | None).decode(data))))
    others[0].start()
    others[0].join(0.5)
    return int

class Inner(msgspec.Struct):
    value: "first_meeting()"

class Outer(msgspec.Struct):
    inner: Inner
    name: str

others, found = [], []
data = msgspec.msgpack.encode({"inner": {"value": 3}, "name": "a"})
decoder_of(Outer)
others[0].join()
print(found)
"""


def test_two_threads_that_meet_a_message_type_first_do_not_crash() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "[Outer(inner=Inner(value=3), name='a')]\n"), ended.stderr
