"""Makes `python -m peer.cli` the same as the command `muster`."""

from peer.cli.main import main

main()
