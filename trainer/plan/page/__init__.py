"""A plan to look at: figures, which are drawn as HTML and as an image."""
