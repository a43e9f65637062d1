"""Deletion vectors in tables of Delta Lake, as Spark writes them: deltalake reads them, and rewrites files instead."""

import base64
import json
import struct
from pathlib import Path

from pyroaring import BitMap

_OF_PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_OF_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def delete_rows_of_delta(directory, version, rows, path=""):
    """Commit a version of a table in which a file, whose path begins so, has a deletion vector of these rows."""
    log = Path(directory, "_delta_log")
    actions = [json.loads(line) for one in sorted(log.glob("*.json")) for line in one.read_text().splitlines()]
    add = next(action["add"] for action in actions if "add" in action and action["add"]["path"].startswith(path))
    bits = struct.pack("<IQI", 1681511377, 1, 0) + BitMap(rows).serialize()
    padded = bits + b"\0" * (-len(bits) % 4)
    text = base64.b85encode(padded).translate(bytes.maketrans(_OF_PYTHON, _OF_Z85)).decode()
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bits), "cardinality": len(rows)}
    removed = {name: add[name] for name in ("path", "partitionValues")} | {"dataChange": True, "deletionTimestamp": 1}
    made = [{"remove": removed}, {"add": add | {"deletionVector": vector}}]
    (log / f"{version:020}.json").write_text("".join(json.dumps(action) + "\n" for action in made))
