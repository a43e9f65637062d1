"""Which processes train together: what launchers say of it."""
