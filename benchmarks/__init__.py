"""Costs of penstock, in ratios to hand-written loops in the same run: `make bench`."""
