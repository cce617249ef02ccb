"""`python -m databus.cli`: the command `databus`."""

from databus.cli import main

main()
