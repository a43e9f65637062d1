"""Which processes train together, according to the launcher's environment variables."""
