"""`ps.video`: functions for `map` that read frames of videos, by number or by time.

They release the GIL. PyAV is imported when the first video is read.
"""

from penstock.video.frames import decode as decode
from penstock.video.frames import info as info
