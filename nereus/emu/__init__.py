"""EMUs, the plans that they realise, and the four primitives over them."""
