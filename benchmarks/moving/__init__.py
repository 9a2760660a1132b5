"""State movement measured: the same state between the same layouts, by Nereus and by what others do today."""
