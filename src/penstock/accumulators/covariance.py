"""Covariance matrices, and principal components."""

import numpy as np

from penstock.accumulators.accumulator import Accumulator, Array, Doubles, State


class Covariance(Accumulator):
    """The covariances of the positions of vectors.

    Example:
        >>> covariance = Covariance()
        >>> covariance.add(np.array([[0.0, 0.0], [4.0, 0.0]])); covariance.add(np.array([[2.0, -2.0], [2.0, 2.0]]))
        >>> covariance.result().tolist()
        [[2.0, 0.0], [0.0, 2.0]]
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: Doubles = np.zeros(0)
        self._products: Doubles = np.zeros((0, 0))

    def add(self, column: Array) -> None:
        """Add the rows of a matrix."""
        if len(column) == 0:
            return
        values = column.astype(np.float64, copy=False)
        mean = np.ascontiguousarray(values.T).sum(axis=-1) / len(values)
        rest = values - mean
        self._take(len(values), mean, rest.T @ rest)

    def _take(self, count: int, mean: Doubles, products: Doubles) -> None:
        if self._count == 0:
            self._count, self._mean, self._products = count, mean, products
            return
        total = self._count + count
        distance = mean - self._mean
        self._products = self._products + products + np.outer(distance, distance) * (self._count * (count / total))
        self._mean = self._mean + distance * (count / total)
        self._count = total

    def merge(self, other: "Covariance") -> None:
        if other._count:
            self._take(other._count, other._mean, other._products)

    def result(self) -> Doubles:
        """The covariance of each pair of positions."""
        return self._products / self._count  # of no rows it is empty

    def components(self, output_dim: int | None) -> Doubles:
        """The eigenvectors of the largest eigenvalues, as columns, that of the largest first."""
        values, vectors = np.linalg.eigh(self.result())
        return np.asarray(vectors[:, np.argsort(values)[::-1]][:, :output_dim])

    def state(self) -> State:
        return {"count": self._count, "mean": self._mean, "products": self._products}

    def load(self, state: State) -> None:
        self._count, self._mean, self._products = state["count"], state["mean"], state["products"]
