"""`ps.transform.compare`: a report of how new data differs from old."""

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import StateMismatchError
from penstock.transform.drift import Doubles, Finding, findings, missing
from penstock.transform.output import TransformOutput

_WIDTH, _HEIGHT = 320, 90

_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Comparison of transforms</title>
<style>
body {{ font: 15px sans-serif; margin: 2em; }}
td, th {{ padding: .3em .8em; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }}
.marked {{ background: #fff0e0; }}
</style>
<h1>Comparison of transforms</h1>
<p>{summary}</p>
<table>
<tr><th>what</th><th>measure</th><th>drift</th><th>old</th><th>new</th><th></th></tr>
{rows}
</table>
"""


@dataclass(frozen=True)
class Comparison:
    """Findings of `compare`.

    Attributes:
        findings: one for each thing that both have learned, those that have moved most first.
        old_rows: how many rows the old data had.
        new_rows: how many rows the new data has.
    """

    findings: Sequence[Finding]
    old_rows: int | None
    new_rows: int | None

    @property
    def marked(self) -> list[Finding]:
        """The findings whose drift is above the limit for their measure."""
        return [finding for finding in self.findings if finding.marked]

    def _summary(self) -> str:
        rows = f"{self.old_rows or 0:,} old rows, {self.new_rows or 0:,} new rows"
        return f"{rows}: {len(self.marked)} of {len(self.findings)} findings are marked"

    def __str__(self) -> str:
        """The report as text: a line for each finding, "!" before those that are marked."""
        lines = [self._summary()]
        for found in self.findings:
            mark = "!" if found.marked else " "
            lines.append(f"{mark} {found.measure} of {found.what}: drift {found.drift:.3g}, {found.old} -> {found.new}")
        return "\n".join(lines)

    def html(self) -> str:
        """The report as a page, with the quantiles of both drawn; it needs no network."""
        return _PAGE.format(summary=html.escape(self._summary()), rows="\n".join(map(_row, self.findings)))


@np.errstate(all="ignore")
def compare(old: TransformOutput | str | os.PathLike[str], new: TransformOutput | str | os.PathLike[str]) -> Comparison:
    """Compare new data with old by the values that the same preprocessing function has learned of both.

    Means, deviations, ranges, quantiles, vocabularies, keys and the shares of missing values: NaN, empty strings and
    empty rows.

    Args:
        old: what `analyze` gave for the old data, or its working directory.
        new: the same of the new data.

    Raises:
        StateMismatchError: the two were learned by different functions.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> def preprocess(columns):
        ...     return {"x": ps.transform.scale_to_z_score(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     for name, values in [("old", [1.0, 2.0, 3.0]), ("new", [2.0, 3.0, 4.0])]:
        ...         rows = ps.Dataset.from_tensor_slices({"x": values})
        ...         _ = ps.transform.analyze(rows, preprocess, f"{directory}/{name}")
        ...     print(ps.transform.compare(f"{directory}/old", f"{directory}/new"))
        3 old rows, 3 new rows: 1 of 3 findings are marked
        ! mean of x: drift 1.22, 2 -> 3
          deviation of x: drift 0, 0.8165 -> 0.8165
          missing of x: drift 0, 0.00% -> 0.00%
    """
    one, other = (given if isinstance(given, TransformOutput) else TransformOutput(given) for given in (old, new))
    if one.graph.fingerprint() != other.graph.fingerprint():
        raise StateMismatchError(
            "compare: the two transforms were learned by different functions: analyze both with the same one"
        )
    found = [
        *findings(one.graph, one.learned, other.learned),
        *missing(one.missing, one.rows, other.missing, other.rows),
    ]
    found.sort(key=lambda finding: (not finding.marked, -finding.drift))
    return Comparison(tuple(found), one.rows, other.rows)


def _row(finding: Finding) -> str:
    cells = [finding.what, finding.measure, f"{finding.drift:.3g}", finding.old, finding.new]
    drawn = "" if finding.boundaries is None else _drawn(*finding.boundaries)
    mark = ' class="marked"' if finding.marked else ""
    return f"<tr{mark}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + f"<td>{drawn}</td></tr>"


def _drawn(old: Doubles, new: Doubles) -> str:
    """Both distributions as lines: values from left to right, ranks from below."""
    both = np.concatenate([old, new])
    both = both[np.isfinite(both)]
    low, width = (both.min(), max(float(both.max() - both.min()), 1e-300)) if len(both) else (0.0, 1.0)
    lines = []
    for values, colour, name in ((old, "#888", "old"), (new, "#d60", "new")):
        ranks = np.arange(1, len(values) + 1) / (len(values) + 1)
        places = np.clip((values - low) / width, 0, 1) * (_WIDTH - 8) + 4
        points = " ".join(f"{x:.1f},{_HEIGHT - y * _HEIGHT:.1f}" for x, y in zip(places, ranks))
        style = f'fill="none" stroke="{colour}" stroke-width="2"'
        lines.append(f'<polyline points="{points}" {style}><title>{name}</title></polyline>')
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="quantiles">{"".join(lines)}</svg>'
