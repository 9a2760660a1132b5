"""Pages of the documentation that the code itself tells: `python -m nereus.cli.reference docs` writes them there."""
