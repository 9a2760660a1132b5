"""verl (volcengine/verl), as of 0.9.1."""
