"""Which plan: candidates per model-stage, their frontier, and the search over all model-stages."""
