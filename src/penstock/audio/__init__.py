"""`ps.audio`: functions for `map` that read audio recordings, or a part of one.

They release the GIL. soundfile is imported when the first recording is read.
"""

from penstock.audio.recordings import decode as decode
from penstock.audio.recordings import info as info
