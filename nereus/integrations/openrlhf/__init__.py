"""OpenRLHF (OpenRLHF/OpenRLHF), as of 0.11.2."""
