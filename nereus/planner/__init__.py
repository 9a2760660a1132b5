"""Which plan: candidates per model-stage, and the search over all model-stages."""
