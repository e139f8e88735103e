"""What runs say, for people: a result table, one self-contained HTML page, figures for a paper.

Reads :class:`classgrad.dynamics.Run` records and computes nothing of its own.
"""

from classgrad.report._results import ResultRow, result_table
from classgrad.report._write import write_report

__all__ = ["ResultRow", "result_table", "write_report"]
