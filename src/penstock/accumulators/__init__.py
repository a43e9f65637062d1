"""Mergeable summaries of columns: sums, extrema, moments, counts of tokens, quantiles, covariances.

An accumulator adds the rows of one block after the other, and merges with one that has added other rows. Neither the
order of the blocks nor where they are cut changes a result by more than rounding. `ps.transform` and the `adapt` of
`ps.preprocessing` learn through them, in one process or on the workers of a data service.
"""
