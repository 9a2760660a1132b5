"""`python -m nereus`."""

from nereus.cli.app import main

main()
