"""Errors say whose fault they are: ours, the user's, the peer's, or the network's."""


class MusterError(Exception):
    """Base of everything Muster raises on purpose; never raised itself."""

    def __init__(self, message: str) -> None:
        if type(self) is MusterError:
            raise TypeError("raise a subclass that says whose fault it is")
        super().__init__(message)


class UsageError(MusterError):
    """The user gave something that cannot work. The message is one sentence that says what to do; exit code 2."""


class LocalError(MusterError):
    """This machine or this process failed (disk full, a child process died). Exit code 1."""


class PeerError(MusterError):
    """A remote peer sent something it must not send. Never raised for what a slow or broken network can cause."""


class NetworkError(MusterError):
    """The network or a remote peer did not answer in time. Says nothing about guilt."""
