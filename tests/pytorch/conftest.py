"""These tests need torch, which `make setup` does not install: `make test-torch` does, and runs them."""

from importlib.util import find_spec

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
