"""The HTTP API: what a job looks like, answered from a projection of the controller's feed, and an operator's wishes."""
