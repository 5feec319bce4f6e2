"""`python -m peer.cli` is the command `muster`."""

from peer.cli.main import main

main()
