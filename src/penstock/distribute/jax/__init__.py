"""Strategies on JAX devices: programs, their arguments and results, ragged steps."""
