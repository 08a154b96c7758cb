"""Tables that others have published, made again with this project's models."""
