"""``report.html``: a page in the run directory that says who gained, from whom, and at what cost."""

from coterie.reports.page.writing import page, write_page

__all__ = ["page", "write_page"]
