"""Programs for people who work on the deployment files. None of them is needed to run Nereus."""
