"""`python -m maskc` is the command `maskc`."""

from maskc.cli import main

main()
