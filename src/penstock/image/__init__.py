"""`ps.image`: functions for `map` that decode images, change their size, and crop and flip them at random.

Decoding and resizing release the GIL. simplejpeg and Pillow are imported when the first image is decoded.
"""

from penstock.image.pixels import decode as decode
from penstock.image.pixels import random_crop as random_crop
from penstock.image.pixels import random_flip as random_flip
from penstock.image.pixels import resize as resize
