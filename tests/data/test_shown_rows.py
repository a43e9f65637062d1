"""`dataset.show` and `penstock inspect --html`: rows as people look at them, in HTML."""

import base64
import io
import re
import wave
from html.parser import HTMLParser

import forked
import numpy as np
import pytest

import penstock as ps

PIXELS = (np.indices((16, 24)).sum(0)[..., None] * [1, 2, 3]).astype(np.uint8)


def embedded(html: str) -> list[tuple[str, bytes]]:
    """The kind and content of every file in HTML."""
    return [(kind, base64.b64decode(data)) for kind, data in re.findall(r"src='data:([\w/]+);base64,([^']*)'", html)]


def pictures(html: str) -> list[np.ndarray]:
    return [ps.image.decode(content) for kind, content in embedded(html) if kind == "image/png"]


def test_a_script_that_showed_rows_saw_nothing(capsys, monkeypatch):
    rows = [{"name": "a\nb", "file": bytes(3000), "image": np.zeros((9, 3), np.uint8), "x": np.float32(0.5)}]
    dataset = ps.Dataset.from_list(rows)
    dataset.show()
    ps.Dataset.range(3).show(2)
    first = r"0  file: 3 kB b'\x00\x00\x00\x00\x00\x00\x00\x00'..., "
    second = "image: uint8[9, 3] [[0 0 0] [0 0 0] ... [0 0 0] [0 0 0]], name: a\\nb, x: 0.5"
    assert capsys.readouterr().out == f"{first}{second}\n0  0\n1  1\n"
    monkeypatch.setattr("builtins.__IPYTHON__", True, raising=False)
    dataset.show()
    assert capsys.readouterr().out == ""


def test_arrays_of_pixels_are_pictures_in_batches_too():
    rows = ps.Dataset.from_list([{"image": PIXELS, "label": 7}] * 3)
    for html, count in ((rows.show(2), 2), (rows.batch(3).show(1), 3)):
        shown = pictures(html)
        assert len(shown) == count
        assert all(np.array_equal(picture, PIXELS) for picture in shown)
    assert "(3, 16, 24, 3) uint8, 0 to 114, mean 38" in rows.batch(3).show()


@pytest.mark.parametrize("form", ["channels first", "float", "grey", "mask"])
def test_other_forms_of_pixels_are_pictures(form):
    array = {
        "channels first": np.moveaxis(PIXELS, -1, 0),
        "float": PIXELS.astype(np.float32) / 7,
        "grey": PIXELS[..., 0],
        "mask": PIXELS[..., 0] > 9,
    }[form]
    (picture,) = pictures(ps.Dataset.from_tensors(array).show())
    assert picture.shape[:2] == (16, 24)
    assert picture.max() == {"channels first": 114, "float": 255, "grey": 38, "mask": 255}[form]


def test_a_large_picture_is_made_smaller():
    (picture,) = pictures(ps.Dataset.from_tensors(np.zeros((2000, 1000, 3), np.uint8)).show())
    assert picture.shape == (500, 250, 3)


def test_files_of_images_and_sound_are_shown_as_they_are():
    files = {"image": b"\xff\xd8\xff rest", "sound": b"RIFF\0\0\0\0WAVE rest", "film": b"\0\0\0\x20ftypmp42"}
    html = ps.Dataset.from_list([files]).show()
    assert dict(embedded(html)) == {
        "image/jpeg": files["image"],
        "audio/wav": files["sound"],
        "video/mp4": files["film"],
    }
    assert "<audio controls" in html
    assert "<video controls" in html


@pytest.mark.parametrize("named", [True, False])
def test_samples_with_a_rate_have_a_player(named):
    samples = np.linspace(-1, 1, 800, dtype=np.float32)
    row = {"sound": samples, "sample_rate": 8000} if named else (samples[:, None], 8000)
    ((kind, content),) = embedded(ps.Dataset.from_list([row]).show())
    assert kind == "audio/wav"
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (8000, 1, 800)
        assert np.frombuffer(file.readframes(800), "<i2")[[0, -1]].tolist() == [-32767, 32767]


class Letters:
    def decode(self, ids: list[int]) -> str:
        return "".join("<abcdef"[number] for number in ids)


def test_tokens_are_decoded_and_segments_have_colours():
    row = {"tokens": [1, 2, 3, 0, 5], "segment_ids": [1, 1, 2, 2, 0], "positions": [0, 1, 0, 1, 0]}
    html = (
        ps.Dataset.from_list([row]).map(lambda row: {k: np.array(v) for k, v in row.items()}).show(tokenizer=Letters())
    )
    spans = re.findall(r"<span style='([^']*)' title='segment (\d)'>([^<]*)</span>", html)
    texts = [(int(segment), text) for _, segment, text in spans]
    assert texts[-3:] == [(1, "ab"), (2, "c&lt;"), (0, "e")]
    assert (2, "0 1") in texts
    assert len({style for style, _, _ in spans}) == 3


def test_tokens_without_segments_are_decoded_in_a_batch():
    html = ps.Dataset.from_tensors(np.array([[1, 2], [3, 4]])).show(tokenizer=Letters())
    assert "<span>ab</span><hr><span>cd</span>" in html
    with pytest.raises(ps.InvalidTypeError, match=r"show\(tokenizer=...\) takes an object with decode\(ids\), got 3"):
        ps.Dataset.range(1).show(tokenizer=3)


def test_numbers_have_their_range_and_a_histogram():
    html = ps.Dataset.from_tensors(np.array([0.0, np.nan, 3.0] * 6)).show()
    assert "(18,) float64, 6 not finite, 0 to 3, mean 1.5" in html
    assert html.count("<rect") == 24


@pytest.mark.parametrize(
    "leaf",
    [
        *(np.zeros(0), np.array([np.nan] * 20), np.array([np.inf, 1.0] * 9), np.array(["2020-01-01"], "M8[D]")),
        *(np.array([1 + 2j]), b"\0\1", "x" * 900, np.array([b"a", b"b"] * 9, object), np.array(3, np.uint64), True),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_leaves_of_every_kind_are_shown(leaf):
    assert "<td>" in ps.Dataset.from_tensors({"leaf": leaf}).show()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)


def test_text_of_rows_is_escaped():
    evil = "<script>alert('1')</script>"
    html = ps.Dataset.from_list([{evil: evil, "b": evil.encode(), "c": np.array([evil], object)}]).show()
    tags = Tags()
    tags.feed(html)
    assert tags.tags == {"div", "style", "table", "tr", "th", "td", "small"}


def test_showing_rows_changes_no_later_iteration():
    dataset = ps.Dataset.range(50).shuffle().with_options(ps.Options(seed=3))
    expected = [int(x) for x in ps.Dataset.range(50).shuffle().with_options(ps.Options(seed=3))]
    shown = dataset.show(2)
    assert shown._repr_html_() == str(shown)
    assert repr(shown).startswith("<HTML of rows, ")
    assert [int(x) for x in dataset] == expected


def test_inspect_writes_a_page(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"word": "<rose>"}\n{"word": "tulip"}\n')
    page = tmp_path / "page.html"
    done = forked.run("-m", "penstock", "inspect", str(tmp_path / "a.jsonl"), "--html", str(page))
    assert f"wrote {page}" in done.stdout
    assert re.findall("<td>(.*?)</td>", page.read_text()) == ["&lt;rose&gt;", "tulip"]
    done = forked.run("-m", "penstock", "inspect", str(tmp_path / "a.jsonl"), "--html", str(tmp_path / "no" / "page"))
    assert "cannot be written: No such file or directory" in done.stderr
