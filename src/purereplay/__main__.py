"""`python -m purereplay` runs the command line."""

from purereplay.cli import main

main()
