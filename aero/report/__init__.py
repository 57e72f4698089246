"""From measured results and published numbers to tables, figures, claims, the page and the PDF.

`results` reads what was measured, `tables` sets it beside what is published, `claims` decides, `figures` draws,
`page` writes the fragments of the report's source, `render` makes the HTML and the PDF of it.
"""
