"""The report as one HTML file that opens anywhere, offline: what failed, why perhaps, and every figure behind it."""

from pytest_accel.report.page.document import MAX_BYTES, render_page
from pytest_accel.report.page.plotly import ReportError, read_plotly_js
from pytest_accel.report.page.plots import Past
from pytest_accel.report.page.writing import write_page

__all__ = ["MAX_BYTES", "Past", "ReportError", "read_plotly_js", "render_page", "write_page"]
