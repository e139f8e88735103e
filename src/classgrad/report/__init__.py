"""What runs say, for people: a result table, plain sentences, one self-contained HTML page, figures for a paper.

Reads :class:`classgrad.dynamics.Run` records and computes nothing of its own. :func:`result_table` gives one row per
algorithm, :func:`findings` says what they show, :func:`write_report` writes page and figures.
"""

from classgrad.report._findings import findings
from classgrad.report._results import ResultRow, result_table
from classgrad.report._write import write_report

__all__ = ["ResultRow", "findings", "result_table", "write_report"]
