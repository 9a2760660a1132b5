"""One dashboard a file."""
