"""The papers' figures and tables: one module a paper, one function a figure or table, named after it.

Functions take `aero.report.results.Results` and return a matplotlib figure or a pandas frame.
"""
