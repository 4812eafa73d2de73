"""The report as one HTML file that opens anywhere, offline."""

from pytest_accel.report.page.document import ReportError, read_plotly_js, render_page, write_page

__all__ = ["ReportError", "read_plotly_js", "render_page", "write_page"]
