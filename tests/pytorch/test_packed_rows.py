"""Packed and mixed documents on ranks of PyTorch, resumed on other numbers of ranks."""

import itertools
import json
from pathlib import Path

import numpy as np
import torch

import penstock as ps

STEPS = 12


def corpus(path: Path, seed: int, *, long: bool) -> ps.Dataset:
    """A corpus in Megatron's files; of one with long documents every fortieth is longer than several rows."""
    randomness = np.random.default_rng(seed)
    lengths = np.clip(randomness.lognormal(2.5, 1.0, 200).astype(np.int64), 1, 60)
    lengths[::40] = 300 if long else lengths[::40]
    documents = [randomness.integers(1, 500, length).astype(np.uint16) for length in lengths]
    ps.Dataset.from_list(documents).save(path, format="megatron", shards=2)
    return ps.FilesDataset(str(path / "*.bin"), "megatron")


def mixture(tmp_path: Path) -> ps.Dataset:
    """Batches of a mixture of three corpora, each packed in its own way."""
    web = corpus(tmp_path / "web", 1, long=False).shuffle(seed=1, reshuffle_each_iteration=False).pack(64, window=50)
    code = corpus(tmp_path / "code", 2, long=False).pack(64, "first_fit", window=30, align=8)
    books = corpus(tmp_path / "books", 3, long=True).pack(64, "concat_split")
    assert all(rows.node.indexable for rows in (web, code, books))
    sources = {name: rows.shuffle(seed=4) for name, rows in (("web", web), ("code", code), ("books", books))}
    return ps.Dataset.mix(sources, [5, 3, 2], stop="repeat").batch(8)


def life(batches: ps.Dataset, ranks: int, state: str | None, steps: int) -> tuple[list[dict[str, torch.Tensor]], str]:
    """The steps of some ranks from a state on, put together again, and the state after them."""
    parts = []
    for rank in range(ranks):
        with ps.torch.loader(batches, rank=rank, num_ranks=ranks) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state))
            parts.append(list(itertools.islice(loader, steps)))
            after = json.dumps(loader.state_dict())
    whole = [{name: torch.cat([part[name] for part in step]) for name in step[0]} for step in zip(*parts, strict=True)]
    return whole, after


def test_packed_rows_are_the_same_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    batches = mixture(tmp_path)
    expected, _ = life(batches, 1, None, STEPS)
    state, found = None, []
    for ranks, steps in ((2, 3), (4, 4), (1, 2), (8, 3)):
        more, state = life(batches, ranks, state, steps)
        found += more
        assert len(state) < 2048
    assert len(found) == len(expected) == STEPS
    for step, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), (step, name)


def test_attention_within_segments_gives_each_document_its_own_loss(tmp_path: Path) -> None:
    """A document in a packed row gets what it gets alone: the mask of its segment and its positions tell all."""
    torch.manual_seed(0)
    embedding, positions = torch.nn.Embedding(500, 16), torch.nn.Embedding(64, 16)
    head = torch.nn.Linear(16, 500)

    def logits(tokens: torch.Tensor, places: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        hidden = embedding(tokens) + positions(places)
        causal = torch.tril(torch.ones(tokens.shape[-1], tokens.shape[-1], dtype=torch.bool))
        return head(torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, allowed & causal))

    (batch,), _ = life(mixture(tmp_path), 1, None, 1)
    tokens, segments, places = batch["tokens"].long(), batch["segment_ids"], batch["positions"].long()
    packed = logits(tokens, places, segments[:, :, None] == segments[:, None, :])
    checked = 0
    for row, ids in enumerate(segments[:3]):
        for number in ids[ids > 0].unique():
            chosen = ids == number
            count = int(chosen.sum())
            alone = logits(tokens[row, chosen], torch.arange(count), torch.ones(count, count, dtype=torch.bool))
            torch.testing.assert_close(packed[row, chosen], alone)
            checked += 1
    assert checked > 5
