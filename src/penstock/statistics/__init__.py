"""Counts of what ran, waited and was held: one schema, which the report, metrics and traces read.

`schema.py` has the structs, `lanes.py` measures threads, `collected.py` collects an iteration's lanes, and `steps.py`
measures the consumer's steps. Nothing here knows datasets, and no fault in it reaches the training.
"""
