"""The decision core: one function from a state and an event to a state and effects."""
