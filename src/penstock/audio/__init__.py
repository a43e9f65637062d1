"""`ps.audio`: functions for `map` that read recordings of sound, whole or a part.

They let other threads run. soundfile is imported when the first recording is read.
"""

from penstock.audio.recordings import decode as decode
from penstock.audio.recordings import info as info
