"""Detection of the processes that train together, from the launcher's environment variables."""
