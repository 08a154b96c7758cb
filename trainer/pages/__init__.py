"""HTML pages that open without a server: tables, bars, and charts that uPlot draws.

Uses nothing.
"""
