from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from peer.service.descriptors import allow_more_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
allow_more_descriptors()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_may_open_what_the_system_allows() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "512 512\n"
