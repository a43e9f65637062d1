"""Folders of images and of texts, and windows of time series: next to Keras, on workers, and with bad files."""

import json
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
import numpy as np
import pytest
from keras.src.utils.dataset_utils import get_training_or_validation_split, index_directory
from keras.src.utils.image_dataset_utils import ALLOWLIST_FORMATS
from PIL import Image
from two_workers import two_workers

import penstock as ps
from penstock.testing import check_conformance

CLASSES = ["10", "9", "Cat", "cow", "dog"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """40 images of five classes, one of which has folders of its own, and files that are no images."""
    made = tmp_path_factory.mktemp("images")
    for number in range(40):
        kind = CLASSES[number % 5]
        inner = made / kind / ("b" if number % 3 else "A") if kind == "cow" else made / kind
        inner.mkdir(parents=True, exist_ok=True)
        ending = ["png", "JPG", "jpeg", "bmp", "gif"][number % 7 % 5]
        Image.fromarray(np.full((20, 30, 3), number * 5, np.uint8)).save(inner / f"{(number * 7) % 40}.{ending}")
    (made / "dog" / "notes.txt").write_text("none")
    (made / "dog" / "big.tif").write_text("none")
    (made / ".hidden").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(made / ".hidden" / "x.png")
    return made


def kerass(directory, **given):
    """The files, labels and classes that Keras's loaders of directories begin with."""
    split, subset = given.pop("validation_split", None), given.pop("subset", None)
    arguments = {"labels": "inferred", "formats": ALLOWLIST_FORMATS, "shuffle": False, "verbose": False} | given
    files, labels, classes = index_directory(str(directory), **arguments)
    files, labels = get_training_or_validation_split(files, labels, split, subset)
    return files, labels, classes


def names_of(dataset):
    """The names of the files of a folder's dataset."""
    return list(ps.Dataset(dataset.node.input))


@pytest.mark.slow
@pytest.mark.parametrize("class_names", [None, ["dog", "9", "cow"]])
def test_files_labels_and_classes_are_kerass(directory, class_names):
    dataset = ps.Dataset.from_image_folder(directory, class_names=class_names)
    files, labels, classes = kerass(directory, class_names=class_names)
    assert names_of(dataset) == files
    assert [int(label) for _, label in dataset] == labels.tolist()
    assert dataset.class_names == dataset.shuffle(seed=1).batch(2).class_names == list(classes)


def test_files_without_labels_are_kerass_but_for_hidden_ones(directory):
    dataset = ps.Dataset.from_image_folder(directory, (8, 8), label_mode=None)
    assert names_of(dataset) == [name for name in kerass(directory, labels=None)[0] if "/.hidden/" not in name]
    assert dataset.element_spec == ps.TensorSpec((8, 8, 3), np.uint8) and len(dataset) == 40
    with pytest.raises(ps.InvalidArgumentError, match="class_names: .*reads no folder of classes"):
        dataset.class_names  # noqa: B018  # it raises


@pytest.mark.slow
@pytest.mark.parametrize("subset", ["training", "validation"])
def test_the_parts_for_training_and_validation_are_kerass(directory, subset):
    given = {"validation_split": 0.3, "subset": subset, "seed": 7}
    files, labels, _ = kerass(directory, shuffle=True, **given)
    dataset = ps.Dataset.from_image_folder(directory, **given)
    assert names_of(dataset) == [name for name in kerass(directory)[0] if name in set(files)]
    assert sorted(int(label) for _, label in dataset) == sorted(labels.tolist())
    assert len(dataset) == {"training": 28, "validation": 12}[subset]


def test_labels_have_the_form_of_the_mode(directory):
    one_hot = ps.Dataset.from_image_folder(directory, label_mode="categorical")
    assert one_hot.element_spec[1] == ps.TensorSpec((5,), np.float32)
    assert one_hot[39][1].tolist() == [0, 0, 0, 0, 1]
    two = ps.Dataset.from_image_folder(directory, label_mode="binary", class_names=["dog", "9"])
    assert two[15][1].tolist() == [1.0] and two[0][1].dtype == np.float32
    assert ps.Dataset.from_image_folder(directory)[39][1] == np.int32(4)


def test_images_are_decoded_to_one_size_or_their_own(directory):
    dataset = ps.Dataset.from_image_folder(directory, (10, 10), class_names=["Cat"])
    numbers = sorted(range(2, 40, 5), key=lambda number: str(number * 7 % 40) + ".")
    for (image, _), number in zip(dataset, numbers, strict=True):
        assert image.shape == (10, 10, 3) and np.abs(image.astype(int) - number * 5).max() <= 2
    own = ps.Dataset.from_image_folder(directory, None, channels=1)
    assert own.element_spec[0] == ps.TensorSpec((None, None, 1), np.uint8) and own[0][0].shape == (20, 30, 1)


@pytest.mark.slow
def test_it_conforms(directory):
    check_conformance(lambda: ps.Dataset.from_image_folder(directory, (4, 4))[:12].batch(5))
    check_conformance(lambda: ps.Dataset.from_image_folder(directory, (4, 4)).shuffle(seed=1).take(9))


@pytest.mark.parametrize("policy", ["AUTO", "DATA", "FILE", "FILE_RANGE"])
def test_workers_have_each_image_once(directory, policy):
    dataset = ps.Dataset.from_image_folder(directory, (4, 4)).shuffle(seed=3).batch(8)
    dataset = dataset.with_options(ps.Options(auto_shard_policy=policy))
    parts = [ps.HostStrategy(1, 2, worker).distribute_dataset(dataset) for worker in range(2)]
    labels = [int(label) for part in parts for step in part for label in step[1].values[0]]
    assert sorted(labels) == sorted(list(range(5)) * 8)
    shown = parts[0].explain()
    assert ("DATA: rows of its files are read by index" if policy == "AUTO" else policy) in shown
    assert policy != "FILE" or ".png: 1 records" in shown


@pytest.mark.slow
def test_data_workers_read_each_image_once(directory):
    dataset = ps.Dataset.from_image_folder(directory, (4, 4)).shuffle(seed=3).batch(8)
    with two_workers() as service:
        shared = dataset.apply(ps.service.distribute("distributed_epoch", service))
        assert [labels.tolist() for _, labels in shared] == [labels.tolist() for _, labels in dataset]
        assert shared.class_names == CLASSES


def test_a_folder_with_a_protocol(directory):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for name in kerass(directory)[0]:
        with open(name, "rb") as file:
            system.pipe(f"/pictures/train{name.removeprefix(str(directory))}", file.read())
    near = ps.Dataset.from_image_folder(directory, (4, 4))
    far = ps.Dataset.from_image_folder("memory://pictures/train/", (4, 4))
    assert far.class_names == CLASSES
    assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(near, far, strict=True))
    system.rm("/pictures", recursive=True)


def test_bad_files_are_errors_that_name_them_and_can_be_skipped(directory, tmp_path):
    (tmp_path / "kind").mkdir()
    for number in range(4):
        Image.fromarray(np.full((9, 9, 3), number, np.uint8)).save(tmp_path / "kind" / f"{number}.png")
    (tmp_path / "kind" / "1.png").write_bytes(b"no image")
    cut = (tmp_path / "kind" / "2.png").read_bytes()[:45]
    (tmp_path / "kind" / "2.png").write_bytes(cut)
    dataset = ps.Dataset.from_image_folder(tmp_path, (9, 9))
    (tmp_path / "kind" / "3.png").unlink()
    iterator = iter(dataset)
    assert next(iterator)[0].shape == (9, 9, 3)
    for kind, message in (
        (ps.ElementError, r"kind/1.png': the 8 bytes are no image of a format"),
        (ps.ElementError, r"kind/2.png': the image of 45 bytes cannot be decoded"),
        (ps.StorageError, r"kind/3.png' cannot be read: No such file"),
    ):
        with pytest.raises(kind, match=message):
            next(iterator)
    skipping = iter(dataset.with_options(ps.Options(on_error="skip", max_errors=3)).batch(2))
    assert [len(images) for images, _ in skipping] == [1] and skipping.errors.count == 3


def test_a_state_goes_on_with_the_next_image(directory):
    whole, begun, other = (iter(ps.Dataset.from_image_folder(directory, (4, 4)).shuffle(seed=5)) for _ in range(3))
    labels = [int(next(begun)[1]) for _ in range(17)]
    other.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    begun.close()
    assert labels + [int(label) for _, label in other] == [int(label) for _, label in whole]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"label_mode": "ints"}, ps.InvalidArgumentError, r"label_mode=...\) takes one of"),
        ({"label_mode": "binary"}, ps.InvalidArgumentError, r"takes two classes, got \['10', '9', 'Cat'"),
        ({"class_names": ["cat"]}, ps.InvalidArgumentError, r"takes folders of \['10', .* got \['cat'\]"),
        ({"class_names": "dog"}, ps.InvalidArgumentError, "got 'dog'"),
        ({"class_names": ["dog"], "label_mode": None}, ps.InvalidArgumentError, "nothing to name"),
        ({"validation_split": 0.2}, ps.InvalidArgumentError, "validation_split and subset together"),
        ({"validation_split": 0.2, "subset": "both", "seed": 1}, ps.InvalidArgumentError, r"subset=...\) takes one of"),
        ({"validation_split": 0.2, "subset": "training"}, ps.InvalidArgumentError, "needs a seed, which draws"),
        ({"validation_split": 0.01, "subset": "training", "seed": 1}, ps.InvalidArgumentError, "takes 0 of 40 files"),
        ({"validation_split": 2, "subset": "training", "seed": 1}, ps.InvalidArgumentError, "between 0 and 1, got 2"),
        ({"seed": 1}, ps.InvalidArgumentError, r"shuffle\(seed=...\) orders elements"),
        ({"image_size": 9}, ps.InvalidTypeError, r"folder\(image_size=...\) takes \(height, width\), got 9"),
        ({"directory": "/nowhere"}, ps.StorageError, "'/nowhere' cannot be listed: No such file or directory"),
        ({"directory": 3}, ps.InvalidTypeError, "takes a string or a path, got 3"),
    ],
)
def test_what_never_works_is_said_when_the_dataset_is_made(directory, given, kind, message):
    with pytest.raises(kind, match=message):
        ps.Dataset.from_image_folder(**({"directory": directory} | given))


def test_folders_without_classes_or_files_are_refused(tmp_path):
    with pytest.raises(ps.InvalidArgumentError, match="has no folders, which would name the classes"):
        ps.Dataset.from_image_folder(tmp_path)
    (tmp_path / "kind").mkdir()
    with pytest.raises(ps.InvalidArgumentError, match=r"no file in the classes of .* ends in \.bmp \.gif"):
        ps.Dataset.from_image_folder(tmp_path)


def test_texts_are_read_by_class(tmp_path):
    for name, text in {"b/2.txt": "zwölf", "b/10.txt": "zehn\n", "a/x/1.TXT": "eins", "a/1.md": "none"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    dataset = ps.Dataset.from_text_folder(tmp_path)
    assert [(text, int(label)) for text, label in dataset] == [("eins", 0), ("zehn\n", 1), ("zwölf", 1)]
    assert names_of(dataset) == kerass(tmp_path, formats=(".txt",))[0] and dataset.class_names == ["a", "b"]
    assert list(ps.Dataset.from_text_folder(tmp_path, label_mode=None, max_length=3)) == ["ein", "zeh", "zwö"]
    (tmp_path / "b" / "2.txt").write_bytes("zwölf".encode("latin-1"))
    with pytest.raises(ps.ElementError, match=r"b/2.txt': the text is not UTF-8.*: encoding=... names another one"):
        list(dataset)
    others = ps.Dataset.from_text_folder(tmp_path, label_mode=None, encoding="latin-1")
    assert list(others) == ["eins", "zehn\n", "zwölf"]


KERASS = json.loads((Path(__file__).parent / "keras_windows.json").read_text())["cases"]
"""What Keras 3.15 on TensorFlow makes of the numbers 0 to 39, whose targets are ten times as large."""


@pytest.mark.parametrize(
    "case", KERASS, ids=lambda case: "-".join(str(case[n]) for n in ("stride", "rate", "start", "end"))
)
def test_windows_are_kerass(case):
    given = {"sequence_length": 3, "sequence_stride": case["stride"], "sampling_rate": case["rate"]}
    given |= {"start_index": case["start"] or 0, "end_index": case["end"]}
    with_targets = ps.Dataset.timeseries_windows(np.arange(40), np.arange(40) * 10, **given)
    assert [window.tolist() for window, _ in with_targets] == case["windows"]
    assert [int(target) for _, target in with_targets] == case["targets"]
    alone = ps.Dataset.timeseries_windows(np.arange(40), None, **given)
    assert [window.tolist() for window in alone] == case["windows"]


def test_windows_are_read_by_index_of_structures_too():
    data = {"x": np.arange(20), "y": np.arange(40.0).reshape(20, 2)}
    windows = ps.Dataset.timeseries_windows(data, None, 4, sequence_stride=2)
    assert windows.element_spec == {"x": ps.TensorSpec((4,), np.int64), "y": ps.TensorSpec((4, 2), np.float64)}
    assert windows[3]["x"].tolist() == [6, 7, 8, 9] and len(windows) == 9
    assert sorted(int(w["x"][0]) for w in windows.shuffle(seed=1)) == list(range(0, 17, 2))
    check_conformance(lambda: ps.Dataset.timeseries_windows(np.arange(9), np.arange(9), 3).batch(2))
    few = ps.Dataset.timeseries_windows(np.arange(20), np.arange(10), 3, start_index=5)
    assert len(few) == 5  # targets 5 to 9


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"sequence_length": 11}, ps.InvalidArgumentError, "a window reaches over 11 rows, and there are 10"),
        ({"sequence_length": 2, "start_index": 9}, ps.InvalidArgumentError, "and there are 1 from start_index"),
        ({"sequence_length": 0}, ps.InvalidArgumentError, "sequence_length.*at least 1"),
        ({"sequence_length": 2, "data": 3}, ps.InvalidArgumentError, "with an axis of time in front"),
        ({"sequence_length": 2, "data": (np.arange(3), np.arange(4))}, ps.InvalidArgumentError, "arrays of one length"),
        ({"sequence_length": "2"}, ps.InvalidTypeError, "sequence_length"),
    ],
)
def test_windows_that_never_fit_are_refused(given, kind, message):
    with pytest.raises(kind, match=message):
        ps.Dataset.timeseries_windows(**({"data": np.arange(10), "targets": None} | given))


def test_hidden_files_are_no_examples_and_links_to_classes_are_followed(tmp_path):
    home = tmp_path / ".home" / "texts"  # what is on the way to the directory does not count
    for name in ("a/x.txt", "a/._x.txt", "a/.trash/y.txt", "a/in/z.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "a" / "up").symlink_to("..")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "w.txt").write_text("w")
    (home / "b").symlink_to(tmp_path / "elsewhere")
    assert [(text, int(label)) for text, label in ps.Dataset.from_text_folder(home)] == [
        ("a/x.txt", 0),
        ("a/in/z.txt", 0),
        ("w", 1),
    ]


def test_the_folder_that_macos_adds_to_archives_is_no_class(tmp_path):
    for name in ("cat/x.txt", "dog/y.txt", "__MACOSX/cat/._x.txt", "__MACOSX/._cat"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    dataset = ps.Dataset.from_text_folder(tmp_path)
    assert dataset.class_names == ["cat", "dog"] and [int(label) for _, label in dataset] == [0, 1]
