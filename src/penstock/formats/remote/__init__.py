"""Files whose names have a protocol."""
