"""`ps.video`: frames of files that FFmpeg and OpenCV have written, each of which shows its number."""

import importlib
import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock as ps

av = pytest.importorskip("av", reason="PyAV is not installed")
reading = importlib.import_module("penstock.formats.media.video")

BY_OPENCV = Path(__file__).parent / "written_by_others" / "frames_by_opencv.avi"
COUNT = 40


def written(kind="mp4", codec="mpeg4", between=2, file=None, **options):
    """A video of 40 frames, a key every ten, with frames that are decoded in another order than they are shown."""
    target = file or io.BytesIO()
    with av.open(target, "w", format=kind, options=options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = 10
        stream.codec_context.max_b_frames = between
        stream.codec_context.options = {"sc_threshold": "1000000000"}  # no keys but these
        for number in range(COUNT):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return Path(file).read_bytes() if file else target.getvalue()


def picture(number):
    """Eight stripes, bright for the bits that a number has."""
    bits = np.array([number >> bit & 1 for bit in range(8)], np.uint8) * 255
    return np.broadcast_to(np.repeat(bits, 8)[None, :, None], (48, 64, 3)).copy()


def numbers(clip):
    """Which frames these are."""
    return [
        int(sum(1 << bit for bit in range(8) if frame[:, 8 * bit + 2 : 8 * bit + 6].mean() > 128)) for frame in clip
    ]


VIDEO = written()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "codec", "between"), [("mp4", "mpeg4", 2), ("matroska", "mpeg4", 0), ("mpegts", "mpeg2video", 2)]
)
def test_frames_are_what_was_written_whichever_are_asked_for(kind, codec, between, tmp_path):
    data = written(kind, codec, between)
    (tmp_path / "a").write_bytes(data)
    for source in (data, tmp_path / "a", str(tmp_path / "a"), (tmp_path / "a").as_uri()):
        assert numbers(ps.video.decode(source)) == list(range(COUNT))
        for asked in (range(13, 30, 4), [39], [0], [22, 3, 21, 3], [], np.array([9, 10, 11])):
            clip = ps.video.decode(source, asked)
            assert clip.shape == (len(asked), 48, 64, 3) and clip.dtype == np.uint8
            assert numbers(clip) == list(asked)
    assert ps.video.decode(data, [7], channels=1).shape == (1, 48, 64, 1)


@pytest.mark.parametrize(
    ("kind", "codec", "most"), [("mp4", "libx264", 2), ("matroska", "mpeg4", 2), ("mpegts", "mpeg2video", 10)]
)
def test_a_clip_decodes_its_own_frames_and_those_since_the_key_before_it(kind, codec, most, monkeypatch):
    """MPEG-TS is searched by the time of decoding, and may lead behind the key frame that is needed."""
    data, decoded, from_place = written(kind, codec), [], reading._from

    def counted(*arguments):
        for frame in from_place(*arguments):
            decoded.append(frame)
            yield frame

    monkeypatch.setattr(reading, "_from", counted)
    assert numbers(ps.video.decode(data, range(12, 34))) == list(range(12, 34))
    assert len(decoded) <= 34 - 10 + most
    decoded.clear()
    assert numbers(ps.video.decode(data, [1, 2, 38])) == [1, 2, 38]
    assert len(decoded) <= 3 + 9 + 2 * most


def test_frames_by_time_and_what_a_video_is():
    info = ps.video.info(VIDEO)
    assert (info.frames, info.height, info.width, info.rate, info.codec) == (COUNT, 48, 64, 25, "mpeg4")
    assert info.times[:3] == (0, 0.04, 0.08) and info.seconds == pytest.approx(1.6)
    assert numbers(ps.video.decode(VIDEO, seconds=[0, 0.039, 0.04, 1.0, 99])) == [0, 0, 1, 25, 39]


def brightness(clip):
    """Which frames of the file of OpenCV these are: each is brighter by 20 than the one before."""
    return [round(float(frame.mean()) / 20) for frame in clip]


def test_a_file_of_another_writer():
    assert brightness(ps.video.decode(BY_OPENCV)) == list(range(12))
    assert brightness(ps.video.decode(BY_OPENCV, [5, 11])) == [5, 11] and ps.video.info(BY_OPENCV).rate == 10


def test_only_what_stands_between_the_last_key_and_a_frame_is_decoded(monkeypatch, tmp_path):
    from_where = []
    monkeypatch.setattr(
        reading, "_from", lambda *given, real=reading._from: from_where.append(given[2]) or real(*given)
    )
    ps.video.decode(VIDEO, [38, 2, 31, 33])
    assert len(from_where) == 2
    (tmp_path / "a.mp4").write_bytes(VIDEO)
    looked = []
    monkeypatch.setattr(
        reading,
        "_looked_through",
        lambda *given, real=reading._looked_through: looked.append(1) or real(*given),
    )
    for _ in range(3):
        ps.video.decode(tmp_path / "a.mp4", [3])
    (tmp_path / "a.mp4").write_bytes(written(between=0))
    assert numbers(ps.video.decode(tmp_path / "a.mp4", [3])) == [3] and len(looked) == 2


def test_clips_of_a_dataset_are_read_by_number(tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.mp4").write_bytes(VIDEO)
    clips = [(str(tmp_path / f"{number}.mp4"), begin) for number in range(2) for begin in range(0, COUNT - 8, 8)]
    dataset = ps.Dataset.from_list(clips).shuffle(seed=2)
    dataset = dataset.map(lambda name, begin: ps.video.decode(name, range(begin, begin + 8)), num_parallel_calls=2)
    for batch in dataset.batch(4):
        assert batch.shape == (4, 8, 48, 64, 3)
        for clip in batch:
            assert numbers(clip) == list(range(numbers(clip)[0], numbers(clip)[0] + 8))


def damaged_in_the_middle(data):
    place = len(data) // 3
    return data[:place] + b"\xff\x00" * 100 + data[place + 200 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "a.mp4' is no video that is known, or cut or damaged"),
        (lambda data: b"hello, this is text", "a.mp4' is no video that is known"),
        (lambda data: data[: len(data) // 2], "a.mp4' is no video that is known, or cut or damaged"),
        (damaged_in_the_middle, r"a.mp4': frame \d+ of 40 cannot be decoded"),
    ],
)
def test_a_damaged_file_is_an_error_of_its_row(change, message, tmp_path):
    names = [str(tmp_path / name) for name in ("a.mp4", "b.mp4")]
    Path(names[0]).write_bytes(change(VIDEO))
    Path(names[1]).write_bytes(VIDEO)
    with pytest.raises(ps.ElementError, match=message):
        ps.video.decode(names[0])
    iterator = iter(ps.Dataset.from_list(names).map(ps.video.decode).ignore_errors())
    assert [clip.shape for clip in iterator] == [(COUNT, 48, 64, 3)] and iterator.errors.count == 1


def test_a_cut_file_whose_head_is_whole_says_how_much_is_there(tmp_path):
    data = written(file=str(tmp_path / "a.mp4"), movflags="faststart")
    with pytest.raises(ps.ElementError, match=r"is cut: it ends after \d+ of 40 frames|is damaged after frame \d+"):
        ps.video.decode(data[: len(data) * 4 // 5], [0])


def test_what_never_works_is_refused(tmp_path):
    with pytest.raises(ps.ElementError, match=r"the recording of \d+ bytes has 40 frames, expected one of number 40"):
        ps.video.decode(VIDEO, [3, 40])
    for frames in ([-1], 3, ["a"], [0.5]):
        with pytest.raises(ps.InvalidArgumentError, match=r"frames=...\) takes a list or range of numbers from 0, got"):
            ps.video.decode(VIDEO, frames)
    with pytest.raises(ps.InvalidArgumentError, match="takes one of frames and seconds, got both"):
        ps.video.decode(VIDEO, [1], [1.0])
    with pytest.raises(ps.InvalidArgumentError, match=r"takes 1 \(gray\) or 3 \(RGB\), got 4"):
        ps.video.decode(VIDEO, channels=4)
    with pytest.raises(ps.StorageError, match="nowhere.mp4' cannot be opened: No such file"):
        ps.video.info(tmp_path / "nowhere.mp4")


def test_a_picture_is_an_error_of_its_row(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)
    with pytest.raises(
        ps.ElementError, match="a.mp4': frame 0 of 1 cannot be decoded: its file is damaged, or of a kind"
    ):
        ps.video.decode(tmp_path / "a.mp4", [0])


def test_a_video_that_is_trimmed_by_an_edit_list_is_no_cut_one(tmp_path):
    (tmp_path / "whole.mp4").write_bytes(VIDEO)
    with av.open(tmp_path / "whole.mp4") as source, av.open(tmp_path / "a.mp4", "w") as target:
        stream = source.streams.video[0]
        out, unit = target.add_stream_from_template(stream), stream.time_base
        for packet in source.demux(stream):
            if packet.dts is not None and packet.pts >= round(0.4 / unit):
                packet.pts, packet.dts = packet.pts - round(0.6 / unit), packet.dts - round(0.6 / unit)
                packet.stream = out
                target.mux(packet)
    with av.open(tmp_path / "a.mp4") as container:
        assert container.streams.video[0].frames == 30
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    found = ps.video.decode(tmp_path / "a.mp4")
    assert np.array_equal(found, shown) and ps.video.info(tmp_path / "a.mp4").frames == len(shown) < 30
    assert np.array_equal(ps.video.decode(tmp_path / "a.mp4", [len(shown) - 1])[0], shown[-1])


@pytest.mark.parametrize(("turned", "quarters"), [(90, 1), (-90, -1), (180, 2), (0, 0)])
def test_frames_of_a_phone_are_turned_as_players_turn_them(turned, quarters):
    one = 1 << 16
    cosine, sine = {0: (one, 0), 90: (0, one), 180: (-one, 0), -90: (0, -one)}[turned]
    plain, matrix = (struct.pack(">9i", c, -s, 0, s, c, 0, 0, 0, 1 << 30) for c, s in ((one, 0), (cosine, sine)))
    place = VIDEO.index(plain, VIDEO.index(b"tkhd"))
    data = VIDEO[:place] + matrix + VIDEO[place + len(plain) :]
    with av.open(io.BytesIO(data)) as container:
        assert next(container.decode(video=0)).rotation % 360 == turned % 360
    whole = np.rot90(ps.video.decode(VIDEO, [3, 20]), quarters, axes=(1, 2))
    assert np.array_equal(ps.video.decode(data, [3, 20]), whole)
    assert ps.video.decode(data, [3], channels=1).shape == (1, *whole.shape[1:3], 1)
    info = ps.video.info(data)
    assert (info.height, info.width) == whole.shape[1:3] and ps.video.decode(data, []).shape == (0, *whole.shape[1:])


def test_comments_and_titles_in_latin_1_do_not_matter():
    pictures = [Image.fromarray(np.full((20, 30), 40 * number, np.uint8)) for number in range(5)]
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], comment=b"gr\xfc\xdfe", duration=100)
    clip = ps.video.decode(file.getvalue())
    assert clip[:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160]
    assert ps.image.decode(file.getvalue(), channels=1).max() == 0


def test_whatever_ffmpeg_raises_names_the_file(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(VIDEO)
    monkeypatch.setattr(reading.av, "open", lambda *given, **options: int("no number"))
    with pytest.raises(ps.ElementError, match="a.mp4' is no video that is known, or cut or damaged: invalid literal"):
        ps.video.decode(tmp_path / "a.mp4")
