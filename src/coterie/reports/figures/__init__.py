"""Figures for papers, drawn with matplotlib from what a run directory holds.

Each module draws one kind, from data frames to a ``matplotlib.figure.Figure``; `kinds` finds the data, `files` writes.
Nothing here is imported with the package: matplotlib is the extra ``plot``.
"""
