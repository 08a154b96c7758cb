"""HTML pages that open without a server: tables, and figures of bars and curves.

Uses nothing.
"""
