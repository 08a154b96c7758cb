"""Vocabularies: ids counted, and the rows that they get."""
