"""`python -m dashboard.serve --view FILE`: runs Streamlit with this dashboard's settings, without telemetry."""

from __future__ import annotations

import argparse
import ipaddress
import sys
from dataclasses import dataclass
from pathlib import Path

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
SETTINGS = {
    "server.headless": "true",  # `muster dashboard` opens the browser
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "server.showEmailPrompt": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "logger.level": "warning",
    "logger.hideWelcomeMessage": "true",
    "runner.magicEnabled": "false",
    "theme.light.primaryColor": "#2f9e6e",
    "theme.dark.primaryColor": "#2f9e6e",
    "theme.metricValueFontSize": "1.4rem",
    "theme.paddingTop": "1rem",
    "theme.paddingBottom": "2rem",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class OwnPeer:
    """The data directory of the peer on this machine, and the file of the token that admits its owner."""

    data: Path
    token_file: Path


def streamlit_arguments(host: str, port: int, view: Path, own: OwnPeer | None) -> list[str]:
    """Return Streamlit's command line. Only this machine gets a peer's controls, and only with the token."""
    settings = [*SETTINGS.items(), ("server.address", host), ("server.port", str(port))]
    if is_loopback(host):  # another site's page must not reach us under its own host name
        settings += [("server.allowedHosts", name) for name in LOOPBACK_NAMES]
    flags = [part for key, value in settings for part in (f"--{key}", value)]
    app = str(Path(__file__).with_name("app.py"))
    ours = ["--view", str(view)]
    if own is not None and is_loopback(host):
        ours += ["--data", str(own.data), "--token-file", str(own.token_file)]
    return ["run", app, *flags, "--", *ours]


def main(arguments: list[str]) -> int:
    """Serve until told to stop; returns an exit code."""
    parser = argparse.ArgumentParser(prog="python -m dashboard.serve", description=__doc__)
    parser.add_argument("--view", type=Path, required=True, help="the file that an observer writes")
    parser.add_argument("--data", type=Path, help="data directory of the peer on this machine")
    parser.add_argument("--token-file", type=Path, help="holds what the owner's address has in it; else no controls")
    parser.add_argument("--listen", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8501, help="TCP port to listen on")
    options = parser.parse_args(arguments)
    # load what pages need before anybody visits, not while the first visitor waits
    import pandas  # type: ignore[import-untyped]  # noqa: F401
    import pyarrow  # type: ignore[import-untyped]  # noqa: F401
    from streamlit.web.cli import main as streamlit

    import dashboard.app  # noqa: F401

    own = OwnPeer(options.data, options.token_file) if options.data and options.token_file else None
    streamlit(streamlit_arguments(options.listen, options.port, options.view, own), prog_name="streamlit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
