"""ps.text.tokenizer: texts to tokens by tokenizers that the tests make."""

import json
import os
import pickle

import cloudpickle
import numpy as np
import pytest

import penstock as ps

TEXTS = ["a rose is a rose", "violets", "tea and a rose", "no"]


class Letters:
    """A tokenizer as users have their own, which notes how many texts come at a time."""

    def __init__(self, add=0):
        self.add = add

    def encode_batch(self, texts):
        if "boom" in texts:
            raise RuntimeError("no tokens for this")
        return [[max(0, ord(letter) - 96) + self.add for letter in text] for text in texts]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tokenizer.json with a token for each word, and [BOS] before each text."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["[UNK]", "[BOS]"])
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 1)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def rows_of(dataset):
    return [row.tolist() for row in dataset]


def texts(*more):
    return ps.Dataset.from_tensor_slices([*TEXTS, *more])


def test_any_object_with_encode_batch_makes_tokens():
    tokens = texts().map(ps.text.tokenizer(Letters(), dtype="uint8", bos=100, eos=0, max_length=5))
    assert tokens.node.indexable and tokens[1].dtype == np.uint8
    assert rows_of(tokens)[1:3] == [[100, 22, 9, 15, 0], [100, 20, 5, 1, 0]]
    assert rows_of(tokens)[3] == [100, 14, 15, 0]
    packed = tokens.with_lengths().pack(9)
    assert sorted(len(row["tokens"]) for row in packed) == [9, 9, 9]


def test_a_leaf_is_replaced_by_its_tokens_and_others_stay():
    rows = ps.Dataset.from_list([{"text": text, "url": f"u{n}"} for n, text in enumerate(TEXTS)])
    found = list(rows.map(ps.text.tokenizer(Letters(), leaf="text")))
    assert [sorted(row) for row in found] == [["tokens", "url"]] * 4
    assert found[3]["tokens"].tolist() == [14, 15] and found[3]["url"] == "u3"


def test_rows_batches_and_blocks_give_the_same_tokens():
    function = ps.text.tokenizer(Letters())
    by_block = rows_of(texts().map(function))
    assert by_block == rows_of(texts().map(lambda text: function(text)))
    assert by_block == rows_of(texts().batch(3).map(function).unbatch())
    assert by_block == rows_of(texts().map(function, num_parallel_calls=2))


def test_a_failure_comes_at_its_row_after_the_rows_before_it():
    tokens = texts("boom", "tea").map(ps.text.tokenizer(Letters()))
    with iter(tokens) as rows:
        assert len([next(rows) for _ in range(4)]) == 4
        with pytest.raises(RuntimeError, match="no tokens for this") as failed:
            next(rows)
        assert any("element 4" in note for note in failed.value.__notes__)
        assert next(rows).tolist() == [20, 5, 1]


def test_tokens_outside_of_the_type_are_refused():
    tokens = texts().map(ps.text.tokenizer(Letters(add=300), dtype="uint8"))
    with pytest.raises(ps.errors.ElementError, match=r"dtype=uint8\): 319 is a token, .*take dtype='int32'"):
        list(tokens)
    rows = ps.Dataset.from_list([{"text": "ab"}])
    with pytest.raises(ps.errors.ElementError, match="takes texts, got a dict: name its text by leaf="):
        rows.map(ps.text.tokenizer(Letters()))[0]
    with pytest.raises(ps.errors.ElementError, match=r"tokenizer\(leaf='txt'\) .*the leaves \['text'\]"):
        rows.map(ps.text.tokenizer(Letters(), leaf="txt"))[0]
    with pytest.raises(ps.errors.ElementError, match="takes texts, got a bytes: decode"):
        list(texts().map(str.encode).map(ps.text.tokenizer(Letters())))


def test_what_is_no_tokenizer_is_refused_at_the_call(tmp_path):
    with pytest.raises(ps.errors.InvalidTypeError, match=r"an object with encode_batch\(texts\), got object"):
        ps.text.tokenizer(object())
    with pytest.raises(ps.errors.InvalidTypeError, match="a type of integers, got float32"):
        ps.text.tokenizer(Letters(), dtype="float32")
    with pytest.raises(ps.errors.InvalidArgumentError, match="max_length=...\\) must be at least 2"):
        ps.text.tokenizer(Letters(), max_length=1, eos=0)
    with pytest.raises(ps.errors.InvalidArgumentError, match="a Letters does not tell offsets"):
        ps.text.tokenizer(Letters(), offsets=True)


def test_a_file_of_hugging_face_is_read(trained, tmp_path):
    library = pytest.importorskip("tokenizers").Tokenizer.from_file(str(trained))
    expected = [encoding.ids for encoding in library.encode_batch(TEXTS)]
    assert rows_of(texts().map(ps.text.tokenizer(trained))) == expected and expected[3][0] == 1
    assert rows_of(texts().map(ps.text.tokenizer(library))) == expected
    bare = ps.text.tokenizer(trained, add_special_tokens=False, max_length=3, eos=7)
    assert rows_of(texts().map(bare)) == [[*row[1:3], 7] for row in expected]
    assert library.truncation is None
    assert os.environ["TOKENIZERS_PARALLELISM"]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ps.errors.StorageError, match=r"tokenizer.json' cannot be read"):
        ps.text.tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(ps.errors.StorageError, match=r"none.json' cannot be read"):
        ps.text.tokenizer(tmp_path / "none.json")


def test_offsets_say_which_characters_a_token_is_of(trained):
    found = list(texts().map(ps.text.tokenizer(trained, offsets=True, eos=0)))
    assert found[1]["offsets"].tolist() == [[0, 0], [0, 7], [7, 7]] and found[1]["offsets"].dtype == np.int32
    start, stop = found[2]["offsets"][2]
    assert TEXTS[2][start:stop] == "and" and len(found[2]["tokens"]) == len(found[2]["offsets"]) == 6


def test_tokens_are_kept_by_snapshots_and_sent_to_workers(trained, tmp_path):
    def tokens():
        return texts().map(ps.text.tokenizer(trained))

    expected = rows_of(tokens())
    assert rows_of(pickle.loads(cloudpickle.dumps(tokens()))) == expected
    assert rows_of(tokens().snapshot(tmp_path / "kept")) == expected
    assert rows_of(tokens().snapshot(tmp_path / "kept")) == expected
    other = json.loads(trained.read_text())
    other["model"]["vocab"]["lily"] = 99
    (tmp_path / "other.json").write_text(json.dumps(other))
    with pytest.raises(ps.errors.StorageError, match="rows of another dataset"):
        texts().map(ps.text.tokenizer(tmp_path / "other.json")).snapshot(tmp_path / "kept")


def test_tiktoken_and_sentencepiece_are_taken(tmp_path):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r".", mergeable_ranks=ranks, special_tokens={})
    assert rows_of(texts().map(ps.text.tokenizer(encoding)))[3] == [*b"no"]
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = iter(TEXTS * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=str(tmp_path / "small"), vocab_size=17, minloglevel=2
    )
    expected = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "small.model")).encode(TEXTS)
    assert rows_of(texts().map(ps.text.tokenizer(tmp_path / "small.model"))) == expected
