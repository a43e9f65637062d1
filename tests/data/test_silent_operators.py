"""An operator that says nothing of itself is never divided, cut or passed: it stays where it sees all elements."""

import pytest

import penstock as ps
from penstock.data.dataset import Dataset
from penstock.data.node import SameElements
from penstock.data.shards import EveryNth, NotByFile, divided_by_file, shard_of_files
from penstock.service.worker.cut import check_shared, cut


class Silent(SameElements, name="silent"):
    """An operator with the defaults of everything that may be said."""

    @property
    def indexable(self):
        return False

    def stream(self, run, epoch):
        return self.input.stream(run, epoch)


def odd(x):
    return x % 2 == 1


def test_it_is_refused_where_files_are_divided(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n")
    (tmp_path / "b.txt").write_text("3\n")
    node = Silent(ps.TextLineDataset([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]).node, site="here")
    with pytest.raises(NotByFile, match=r"silent\(\) at here is about the data of all workers together"):
        divided_by_file(node, lambda reader: shard_of_files(reader, EveryNth(2, 0), "another policy"))


def test_it_is_refused_above_a_shared_job():
    node = Silent(ps.Dataset.range(9).filter(odd).node, site="here")
    with pytest.raises(ps.InvalidArgumentError, match=r"silent\(\) at here must see all elements"):
        check_shared(cut(node))


def test_a_cache_in_a_directory_is_refused_above_a_shared_job(tmp_path):
    dataset = ps.Dataset.range(9).filter(odd).cache(tmp_path / "kept").filter(bool)
    with pytest.raises(ps.InvalidArgumentError, match=r"cache\(.*\) at .* must see all elements"):
        check_shared(cut(dataset.node))
    check_shared(cut(ps.Dataset.range(9).filter(odd).cache().filter(bool).node))


def test_maps_do_not_pass_it_on_their_way_to_the_workers():
    node = Dataset(Silent(ps.Dataset.range(9).filter(odd).node)).map(abs).node
    assert [step.name for step in cut(node).above] == ["silent", "map"]
