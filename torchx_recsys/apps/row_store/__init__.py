"""Publishes the tables of exports to a store of rows, and answers from there. Read publish.py first."""
