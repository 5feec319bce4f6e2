"""Which addresses are this machine's."""

import pytest

from dht.daemon.own_hosts import LOOPBACK, hosts_behind, is_own, outward_hosts


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("::ffff:127.0.0.1", True),
        ("203.0.113.9", False),
        ("0.0.0.0", False),
        ("", False),
        ("a.b", False),
    ],
)
def test_an_address_is_ours_if_we_could_listen_there(host: str, own: bool) -> None:
    assert is_own(host) is own
    assert (LOOPBACK in hosts_behind(host)) is own
    assert host in hosts_behind(host)


def test_hosts_that_call_outward_are_our_own() -> None:
    assert all(map(is_own, outward_hosts()))
