"""From measured results and published numbers to tables, figures, claims, the page and the PDF.

`results` reads what was measured, `tables` sets it beside what is published, `claims` decides, `papers` has the tables
and figures of each paper, `show` displays them in the notebooks of reports/, `render` makes the HTML and the PDF.
"""
