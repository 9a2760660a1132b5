"""Raw facts about the world: which devices are there. Thresholds live in the policy, never here."""
