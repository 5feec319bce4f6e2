"""A peer's process: control socket, metrics, dashboard child, systemd unit."""
