"""The report of an iterator as words, as data and as files."""

import html.parser
import json
import re
import resource
import sys
from types import SimpleNamespace

import pytest

import penstock as ps
from penstock.report.report import load_report
from penstock.statistics import process
from penstock.statistics.schema import Histogram


@pytest.fixture
def report():
    with iter(ps.Dataset.range(40).map(lambda x: x + 1).batch(4)) as iterator:
        list(iterator)
        return iterator.report()


def test_words_come_before_the_table(report):
    first, *_, last = str(report).splitlines()
    assert first.startswith(("waiting", "the input keeps up"))
    assert last.startswith("batch at test_report.py")


def test_data_of_a_report_is_plain(report):
    data = json.loads(json.dumps(report.to_dict()))
    assert data["ranks"][0]["steps"]["count"] == 10
    assert [operator["name"] for operator in data["ranks"][0]["operators"]] == ["range", "map", "batch"]
    assert data["words"] == report.lines()


def test_before_the_first_step_nothing_is_claimed():
    with iter(ps.Dataset.range(3)) as iterator:
        assert iterator.report().lines() == ["nothing was read yet: take some steps first"]
    data = ps.keras.as_input(ps.Dataset.range(8).batch(4))
    assert data.report().lines() == ["nothing was read yet: take some steps first"]
    with iter(ps.Dataset.range(3).with_options(ps.Options(statistics=False))) as iterator:
        assert iterator.report().lines() == ["statistics are off"]


def test_a_report_at_the_prompt_is_its_words(report):
    assert repr(report) == str(report)


def test_a_saved_report_is_read_again_unchanged(report, tmp_path):
    report.save(tmp_path / "run.json")
    assert load_report(tmp_path / "run.json") == report
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_report_of_another_version_is_refused_with_both_numbers(report, tmp_path):
    report.schema = 99
    report.save(tmp_path / "run.json")
    with pytest.raises(ps.errors.StorageError, match="is a report of format 99, and penstock .* reads format 1"):
        load_report(tmp_path / "run.json")


def test_what_is_no_report_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(ps.errors.StorageError, match="is no report"):
        load_report(tmp_path / "run.json")
    with pytest.raises(ps.errors.StorageError, match="cannot be read"):
        load_report(tmp_path / "none.json")


def test_a_report_that_cannot_be_written_is_an_error_of_storage(report, tmp_path):
    with pytest.raises(ps.errors.StorageError, match="was not written"):
        report.save(tmp_path / "missing" / "run.html")


def test_a_disk_that_is_full_is_an_error_and_leaves_no_part_of_a_report(report, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ps.errors.StorageError, match="was not written"):
            report.save(tmp_path / "run.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


class Page(html.parser.HTMLParser):
    """What a page refers to, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.refers, self.names = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.refers += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_no_other_file_and_no_script(report, tmp_path):
    report.save(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    page = Page(text)
    assert page.open == [] and page.refers == [] and "script" not in page.names
    assert "svg" in page.names and "prefers-color-scheme" not in text and "color-scheme: light dark" in text
    assert "map(&lt;lambda&gt;)" in text and "<lambda>" not in text
    assert text.count("<tr class=limit>") == 1


def test_a_report_in_a_notebook_leaves_the_style_of_the_notebook_alone(report):
    shown = report._repr_html_()
    assert "<body" not in shown and "<html" not in shown
    rules = shown.partition("<style>")[2].partition("</style>")[0].replace("@media (max-width: 40rem) {", "")
    selectors = [one for rule in rules.split("}") for one in rule.partition("{")[0].split(",") if one.strip()]
    assert len(selectors) > 10 and all(one.strip().startswith(".penstock-report") for one in selectors)


def test_bars_of_waits_are_as_long_as_their_counts_say(report):
    report.ranks[0].steps.blocked = Histogram()
    report.ranks[0].steps.blocked.add([0.3] * 4 + [0.4] * 4 + [0.7] * 2)
    waits = report._repr_html_().partition("Waits of steps")[2]
    assert re.findall(r"up to ([^<]+)<", waits) == ["500 ms", "1 s"]
    assert re.findall(r'class="wait" x="0.0" width="([^"]+)"', waits) == ["100.0", "25.0"]


def test_a_line_of_a_notebook_is_named_by_its_cell(monkeypatch):
    shell = SimpleNamespace(
        compile=SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == __file__ else None)
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with iter(ps.Dataset.range(3)) as iterator:
        assert re.search(r"^range at Cell In\[3\]:\d+ ", iterator.report().table(), re.MULTILINE)


def test_the_start_tells_of_files_that_were_opened_before_iter(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "seconds", {"import penstock": 2.0})
    (tmp_path / "a.txt").write_text("1\n")
    files = ps.FilesDataset(tmp_path / "*.txt", "text")
    assert process.seconds["files listed and opened"] > 0
    process.seconds["files listed and opened"] = 90.0
    with iter(files.repeat(4)) as iterator:
        assert list(iterator) == ["1"] * 4
        report = iterator.report()
    (start,) = [line for line in report.lines() if line.startswith("start: ")]
    assert start.startswith("start: import penstock 2 s, files listed and opened 90 s, iter() until the first next() ")
    assert list(report.ranks[0].start)[3:] == ["first element", "your first step"]
    assert '<td data-head="took">files listed and opened</td><td data-head="seconds">90 s</td>' in report.html()


def test_files_that_a_running_map_opens_are_no_part_of_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "seconds", {})
    path = tmp_path / "a.txt"
    path.write_text("1\n")
    with iter(ps.Dataset.range(2).flat_map(lambda _: ps.TextLineDataset(path))) as iterator:
        assert list(iterator) == ["1", "1"]
    assert process.seconds == {}


def test_rows_of_a_mixture_are_counted_by_source_after_a_restore_too():
    sources = {"a": ps.Dataset.range(100), "b": ps.Dataset.range(100).map(lambda x: -x - 1)}
    mixed = ps.Dataset.mix(sources, {"a": 0.75, "b": 0.25}, seed=1).take(80)
    whole = list(mixed)
    with iter(mixed) as iterator:
        state = [next(iterator) for _ in range(20)] and iterator.state_dict()
    with iter(mixed) as iterator:
        iterator.load_state_dict(state)
        assert list(iterator) == whole[20:]
        data = iterator.report().to_dict()["ranks"][0]
    (stage,) = data["stages"]
    rows = [stage["operators"][str(number)]["rows"] for number, _ in enumerate(data["operators"][:3])]
    assert rows == [45, 15, 15] == [sum(x >= 0 for x in whole[20:])] + [sum(x < 0 for x in whole[20:])] * 2


def test_operators_of_a_mixture_are_told_apart_by_their_sources() -> None:
    sources = {name: ps.Dataset.range(8).map(abs) for name in ("web", "books")}
    with iter(ps.Dataset.mix(sources, {"web": 1.0, "books": 1.0}, seed=1).batch(2)) as iterator:
        list(iterator)
        names = [line.split(" at ")[0] for line in iterator.report().table().splitlines()[1:]]
    assert sorted(names) == [
        "batch",
        "map(abs) of 'books'",
        "map(abs) of 'web'",
        "mix",
        "range of 'books'",
        "range of 'web'",
    ]
