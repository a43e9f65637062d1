"""Reports of what a training waits for: `cause.py` finds the operator, `verdict.py` says it and what to change.

`costs.py` has the table, `report.py` what `iterator.report()` gives and the difference of two runs, `page.py` its page.
"""
