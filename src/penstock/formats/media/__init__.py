"""Images, sound and video. The packages that they need are imported when they are first used."""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.formats.media import images as images

__getattr__ = when_used(__name__, "images")
