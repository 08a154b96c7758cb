"""Vectors of a column of texts, or of images by an encoder of one's own, beside the columns of a data set."""
