"""`ps.audio`: what Python's `wave` and FFmpeg have written, whole and in parts, and what is wrong with others."""

import io
import wave

import numpy as np
import pytest

import penstock as ps

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")

RATE = 8000
TONE = (np.sin(np.arange(RATE) / 20) * 20000).astype("<i2")
STEREO = np.stack([TONE, -TONE // 2], axis=1)


def wav(samples):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((samples.shape[1], 2, RATE, 0, "NONE", "NONE"))
        sound.writeframes(samples.tobytes())
    return file.getvalue()


def by_ffmpeg(kind, codec):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(STEREO.reshape(1, -1)), format="s16", layout="stereo")
        frame.sample_rate = RATE
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    return file.getvalue()


def test_every_sample_of_a_wave_file_in_every_dtype():
    data, rate = ps.audio.decode(wav(STEREO), dtype="int16")
    assert rate == RATE and np.array_equal(data, STEREO)
    floats, _ = ps.audio.decode(wav(STEREO))
    assert floats.dtype == np.float32 and np.array_equal(floats, STEREO.astype(np.float32) / 32768)
    info = ps.audio.info(wav(STEREO[:, :1]))
    assert (info.samples, info.channels, info.rate, info.seconds, info.format) == (RATE, 1, RATE, 1.0, "WAV PCM_16")


@pytest.mark.parametrize(("kind", "codec", "most"), [("flac", "flac", 0), ("wav", "pcm_s16le", 0)])
def test_what_ffmpeg_has_written_in_parts_too(kind, codec, most, tmp_path):
    data = by_ffmpeg(kind, codec)
    (tmp_path / "a").write_bytes(data)
    for begin, end in ((0, 0), (0, 8000), (100, 105), (4095, 4097), (7999, 8000)):
        for source in (data, tmp_path / "a", str(tmp_path / "a"), (tmp_path / "a").as_uri()):
            part, _ = ps.audio.decode(source, samples=(begin, end), dtype="int16")
            assert np.abs(part.astype(int) - STEREO[begin:end]).max(initial=0) <= most and part.shape == (
                end - begin,
                2,
            )
    assert np.array_equal(ps.audio.decode(data, seconds=(0.25, 0.5))[0], ps.audio.decode(data)[0][2000:4000])


def test_clips_of_a_dataset_are_read_by_number(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.wav").write_bytes(wav(STEREO + number))
    clips = [(str(tmp_path / f"{number}.wav"), begin) for number in range(3) for begin in range(0, RATE, 1000)]
    dataset = (
        ps.Dataset.from_list(clips)
        .shuffle(seed=1)
        .map(lambda name, begin: ps.audio.decode(name, samples=(begin, begin + 1000), dtype="int16")[0], ps.AUTOTUNE)
    )
    found = sorted(int(clip[0, 0]) for clip in dataset)
    assert found == sorted(int(STEREO[begin, 0]) + number for number in range(3) for begin in range(0, RATE, 1000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "a.flac' is no audio that is known, or damaged at its beginning"),
        (lambda data: b"hello, this is text", "a.flac' is no audio that is known"),
        (
            lambda data: data[: len(data) // 2],
            r"a.flac' is (no audio that is known, or damaged at its beginning|damaged after sample 0|cut: it ends)",
        ),
        (lambda data: wav(STEREO)[:20_000], "a.flac' is cut: it has 19956 bytes of samples, expected 32000"),
    ],
)
def test_a_damaged_file_is_an_error_of_its_row(change, message, tmp_path):
    (tmp_path / "a.flac").write_bytes(change(by_ffmpeg("flac", "flac")))
    with pytest.raises(ps.ElementError, match=message):
        ps.audio.decode(tmp_path / "a.flac")
    names = [str(tmp_path / "a.flac"), str(tmp_path / "b.wav")]
    (tmp_path / "b.wav").write_bytes(wav(STEREO))
    iterator = iter(ps.Dataset.from_list(names).map(lambda name: ps.audio.decode(name)[0]).ignore_errors())
    assert [clip.shape for clip in iterator] == [(RATE, 2)] and iterator.errors.count == 1


def test_what_never_works_is_refused(tmp_path):
    data = wav(STEREO)
    with pytest.raises(
        ps.ElementError, match="the recording of 32044 bytes has 8000 samples, expected .* 7000 to 8001"
    ):
        ps.audio.decode(data, samples=(7000, 8001))
    with pytest.raises(
        ps.InvalidArgumentError, match=r"samples=...\) takes \(begin, end\), numbers from 0, got \(5, 1\)"
    ):
        ps.audio.decode(data, samples=(5, 1))
    with pytest.raises(ps.InvalidArgumentError, match=r"seconds=...\) takes \(begin, end\), numbers from 0, got 3"):
        ps.audio.decode(data, seconds=3)
    with pytest.raises(ps.InvalidArgumentError, match="takes one of samples and seconds, got both"):
        ps.audio.decode(data, samples=(0, 1), seconds=(0, 1))
    with pytest.raises(ps.InvalidArgumentError, match="takes one of 'int16', .* got 'int8'"):
        ps.audio.decode(data, dtype="int8")
    with pytest.raises(ps.InvalidTypeError, match="takes the bytes of a file or its name, got a int"):
        ps.audio.decode(3)
    with pytest.raises(ps.StorageError, match="nowhere.wav' cannot be opened: No such file"):
        ps.audio.decode(tmp_path / "nowhere.wav")


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_floats_in_a_wav_are_scaled_to_integers(subtype, dtype):
    wave = np.append(0.5 * np.sin(np.arange(80) / 10), [1.5, -1.5])
    file = io.BytesIO()
    pytest.importorskip("soundfile").write(file, wave, 8000, format="WAV", subtype=subtype)
    found, _ = ps.audio.decode(file.getvalue(), dtype=dtype)
    assert found.dtype == dtype and np.abs(found[:80, 0] / 2.0 ** (8 * found.itemsize - 1) - wave[:80]).max() < 1e-4
    assert found[80:, 0].tolist() == [np.iinfo(dtype).max, np.iinfo(dtype).min]


def mp3_without_header(wave, **options):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    file = io.BytesIO()
    with av.open(file, "w", format="mp3", options={"write_xing": "0"}) as container:
        stream = container.add_stream("libmp3lame", rate=44100, layout="mono", options=options)
        stream.bit_rate = 64000
        for begin in range(0, len(wave), 1152):
            frame = av.AudioFrame.from_ndarray(wave[None, begin : begin + 1152], format="s16", layout="mono")
            frame.sample_rate, frame.pts = 44100, begin
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


LOUD = (np.random.default_rng(0).normal(size=115 * 1152) * 6000).astype(np.int16)


@pytest.mark.parametrize(
    ("wave", "options"),
    [
        (LOUD, {}),
        (np.concatenate([LOUD, np.zeros_like(LOUD)]), {"abr": "1"}),
        (np.concatenate([np.zeros_like(LOUD), LOUD]), {"abr": "1"}),
    ],
    ids=["constant", "loud first", "quiet first"],
)
@pytest.mark.parametrize("tag", [b"", b"ID3\4\0\0\0\0\2\1" + b"Info".ljust(257, b"\0")], ids=["plain", "with a tag"])
def test_an_mp3_without_a_xing_header_has_all_of_its_samples(wave, options, tag, tmp_path):
    data = tag + mp3_without_header(wave, **options)
    (tmp_path / "a.mp3").write_bytes(data)
    found, _ = ps.audio.decode(tmp_path / "a.mp3", dtype="int16")
    assert ps.audio.info(data).samples == len(found) and len(wave) <= len(found) <= len(wave) + 3 * 1152
    part, _ = ps.audio.decode(data, samples=(len(found) - 500, len(found)), dtype="int16")
    assert part.shape == (500, 1)
    with pytest.raises(ps.ElementError, match=rf"a.mp3' has {len(found)} samples, expected those from 0 to"):
        ps.audio.decode(tmp_path / "a.mp3", samples=(0, len(found) + 1))


def with_length(data, size, riff=None):
    place = data.index(b"data")
    sizes = [number.to_bytes(4, "little") for number in (size if riff is None else riff, size)]
    return b"RIFF" + sizes[0] + data[8 : place + 4] + sizes[1] + data[place + 8 :]


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFFF - 36])
def test_a_wav_written_to_a_pipe_is_no_cut_file(size):
    found, _ = ps.audio.decode(with_length(wav(STEREO), size), dtype="int16")
    assert np.array_equal(found, STEREO)


def test_a_wav_whose_length_was_never_written_is_no_empty_one():
    av = pytest.importorskip("av", reason="PyAV is not installed")
    unfinished, finished = io.BytesIO(with_length(wav(STEREO), 0)), io.BytesIO()
    with pytest.raises(ps.ElementError, match="does not say how many samples it has: .* ffmpeg -i FILE NEW_FILE"):
        ps.audio.decode(unfinished.getvalue())
    with av.open(unfinished) as source, av.open(finished, "w", format="wav") as target:  # what the error advises
        stream = target.add_stream("pcm_s16le", rate=RATE, layout="stereo")
        for frame in source.decode(audio=0):
            target.mux(stream.encode(frame))
        target.mux(stream.encode())
    assert np.array_equal(ps.audio.decode(finished.getvalue(), dtype="int16")[0], STEREO)
    assert ps.audio.info(wav(STEREO[:0])).samples == 0


def test_a_flac_of_unknown_length_is_refused_with_a_remedy():
    data = bytearray(by_ffmpeg("flac", "flac"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    with pytest.raises(ps.ElementError, match="does not say how many samples it has: .* ffmpeg -i FILE NEW_FILE"):
        ps.audio.decode(bytes(data))


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "W64", "RF64", "AIFF", "AU", "SVX"])
def test_a_cut_recording_is_an_error_in_every_kind_that_says_its_length(kind):
    file = io.BytesIO()
    pytest.importorskip("soundfile").write(file, TONE, RATE, format=kind)
    with pytest.raises(ps.ElementError, match="is cut: it has .* bytes of samples, expected"):
        ps.audio.decode(file.getvalue()[:-1000])


def test_a_title_in_latin_1_does_not_matter():
    title = b"INFOINAM\x06\0\0\0gr\xfc\xdfe\0"
    data = wav(STEREO)
    place = data.index(b"data")
    data = data[:place] + b"LIST" + len(title).to_bytes(4, "little") + title + data[place:]
    assert np.array_equal(ps.audio.decode(data, dtype="int16")[0], STEREO)


def test_a_failing_read_is_no_damage_of_the_recording(monkeypatch):
    class Failing(io.BytesIO):
        def read(self, count=-1):
            if self.tell() > 1000:
                raise ps.StorageError("the store does not answer")
            return super().read(count)

    monkeypatch.setattr("penstock.formats.media.recordings.open_file", lambda name: Failing(wav(STEREO)))
    with pytest.raises(ps.StorageError, match="the store does not answer"):
        ps.audio.decode("a.wav")


def test_a_length_that_a_file_claims_gets_no_memory_before_its_samples():
    data = bytearray(by_ffmpeg("flac", "flac"))
    data[21] |= 0x0F  # 2**35 samples and more
    with pytest.raises(ps.ElementError, match=r"is (damaged after sample 0|cut: it ends after 8000), of|of 6\d{10}"):
        ps.audio.decode(bytes(data))


def test_recordings_longer_than_what_is_read_at_once_are_whole(monkeypatch):
    monkeypatch.setattr("penstock.formats.media.audio._MOST_AT_ONCE", 1000)
    for begin, end in ((0, 8000), (10, 2010), (10, 2011), (0, 1000), (5, 5)):
        found, _ = ps.audio.decode(wav(STEREO), samples=(begin, end), dtype="int16")
        assert np.array_equal(found, STEREO[begin:end])


def ogg(subtype, samples=60_000):
    rng = np.random.default_rng(0)
    tone = np.sin(np.arange(samples) / RATE * 440) * 0.9 + rng.normal(0, 0.15, samples)
    file = io.BytesIO()
    soundfile.write(file, tone, RATE, format="OGG", subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_loud_ogg_files_do_not_wrap_around_as_integers(subtype):
    floats, _ = ps.audio.decode(ogg(subtype))
    assert np.abs(floats).max() > 1
    for dtype in ("int16", "int32"):
        limits = np.iinfo(dtype)
        wanted = np.clip(np.rint(floats * -float(limits.min)), limits.min, limits.max)
        assert np.abs(ps.audio.decode(ogg(subtype), dtype=dtype)[0] - wanted).max() <= -limits.min / 2**24


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_clips_from_the_end_of_an_ogg_file_are_those_of_the_whole(subtype):
    data = ogg(subtype)
    whole, _ = ps.audio.decode(data)
    for begin in (0, 30_000, 56_000, *range(57_500, 60_000, 150), 59_999):
        for end in (begin + 1, 60_000):
            assert np.array_equal(ps.audio.decode(data, samples=(begin, end))[0], whole[begin:end])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_a_cut_ogg_file_is_an_error_and_no_shorter_recording(subtype):
    data = ogg(subtype)
    for size in (len(data) // 3, len(data) // 2, data.rfind(b"OggS"), data.rfind(b"OggS") + 30, len(data) - 1):
        for call in (ps.audio.decode, ps.audio.info):
            with pytest.raises(ps.ElementError, match=f"the recording of {size} bytes is cut"):
                call(data[:size])
    assert ps.audio.info(data + b"a tag").samples == 60_000
