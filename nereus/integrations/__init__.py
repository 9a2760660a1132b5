"""What Nereus knows of other frameworks: one package each, loaded only where it is asked for."""
