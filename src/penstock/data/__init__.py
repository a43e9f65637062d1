"""Datasets: blocks, nodes, operators, plans, and the fluent `Dataset` on top of them."""

from penstock.data.dataset import Dataset as Dataset
from penstock.data.iterator import DatasetIterator as DatasetIterator
