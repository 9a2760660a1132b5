"""The scenarios of the adaptation benchmark."""
