"""Mixtures: named datasets by weight, in an order that can be entered anywhere and changed during a run."""
