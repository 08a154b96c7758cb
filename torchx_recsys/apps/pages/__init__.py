"""Charts for terminals, and figures as images."""
