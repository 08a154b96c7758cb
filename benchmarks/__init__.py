"""What measures the project, and makes the tables of the documentation; not part of the wheel."""
