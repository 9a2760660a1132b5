"""Nereus adapts the parallelism of LLM post-training jobs while they run."""

__version__ = "0.1.0"
