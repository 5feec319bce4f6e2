"""The shell around the protocol core: driver, tensor worker, spot checks, catching up, tapes."""
