"""`python -m labelwise` is the `labelwise` command."""

from labelwise.cli import main

main()
