"""NeMo-RL (NVIDIA-NeMo/RL), as of January 2026."""
