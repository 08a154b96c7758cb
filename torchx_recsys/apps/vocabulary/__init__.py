"""Makes vocabularies: counts ids and gives them rows."""
