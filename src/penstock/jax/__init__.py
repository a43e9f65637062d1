"""`ps.jax`: datasets as global arrays on JAX meshes of any shape."""

from penstock.jax.loader import MeshLoader as MeshLoader
from penstock.jax.loader import loader as loader

__all__ = ["MeshLoader", "loader"]
