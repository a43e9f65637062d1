"""`penstock report`: the report of a run, or the difference between two."""

import argparse
from typing import Final

from penstock.cli.arguments import Commands, add_command, failed, say
from penstock.report.report import compared, load_report, slowdown

_SLOWER: Final = 1
"""The exit status of a run that is slower than allowed."""


def add_report(commands: Commands) -> None:
    """Add the command to the parser."""
    epilog = "Example, for a check in CI: penstock report before.json after.json --fail-above 5%"
    parser = add_command(commands, "report", _report, epilog)
    parser.add_argument("before", metavar="A.json", help="the report of a run")
    parser.add_argument("after", metavar="B.json", nargs="?", help="the report of a later run, to compare with A")
    parser.add_argument(
        "--fail-above", type=_share, metavar="PERCENT", help="end with status 1 if a step of B takes so much longer"
    )


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not share >= 0:
        raise argparse.ArgumentTypeError(f"must be a percentage such as 5%, got {text!r}")
    return share


def _report(options: argparse.Namespace) -> int:
    """Show a saved report, or compare those of two runs.

    A report is what report.save('run.json') has written.
    """
    before = load_report(options.before)
    if options.after is None:
        say(str(before))
        return 0 if options.fail_above is None else failed("--fail-above compares two reports: name the second, too")
    after = load_report(options.after)
    say(compared(before, after))
    slower = slowdown(before, after)
    if options.fail_above is not None and slower > options.fail_above:
        failed(f"a step takes {slower:.1%} longer than before, more than the {options.fail_above:.1%} allowed")
        return _SLOWER
    return 0
