"""The data worker: it makes the elements that consumers ask for."""
