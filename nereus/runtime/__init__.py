"""The ports between decisions and the world, and what carries a transition through them."""
