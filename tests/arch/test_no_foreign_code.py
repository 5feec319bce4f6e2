"""Nothing that comes over the network is ever executed: no way to do so exists in the house (SECURITY.md)."""

from __future__ import annotations

import ast
import os
import pickle  # noqa: TID251 - to show that it is refused
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file

from coordinator.run.manifest import Manifest
from dht.errors import PeerError
from peer.net.frames import decode_header
from tests.arch.test_house import MODULES, dotted, imported, relative, syntax_of

# Whatever turns bytes into code or objects with code. A module of the same name with another meaning does not exist.
EXECUTORS = {
    "eval",
    "exec",
    "compile",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "runpy",
    "torch.hub",
    "torch.jit.load",
    "torch.load",
    "numpy.load",
    "yaml.load",
    "pickle",
}
TRUSTING = ("trust_remote_code", "allow_pickle", "weights_only")


def foreign_code(source: str) -> list[str]:
    """Every use of an executor, and every argument that trusts what was downloaded, with its line."""
    tree = syntax_of(source)
    meaning = {bound: full for bound, full, _ in imported(tree)}
    found = [
        f"{line}: {full}"
        for _, full, line in imported(tree)
        if any(f"{full}.".startswith(f"{one}.") for one in EXECUTORS)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (chain := dotted(node.func)):
            full = ".".join([meaning.get(chain[0], chain[0]), *chain[1:]])
            found += [f"{node.lineno}: {full}" for one in EXECUTORS if f"{full}.".startswith(f"{one}.")]
        if isinstance(node, ast.keyword) and node.arg in TRUSTING:
            safe = isinstance(node.value, ast.Constant) and node.value.value is (node.arg == "weights_only")
            found += [] if safe else [f"{node.value.lineno}: {node.arg}"]
    return found


def test_no_module_can_execute_what_it_is_given() -> None:
    found = {relative(path): foreign_code(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("eval(text)", 1),
        ("import numpy as np\nnp.load(path)", 1),
        ("from pickle import loads", 1),
        ("load(name, trust_remote_code=True)", 1),
        ("load(name, trust_remote_code=answer)", 1),
        ("load(name, trust_remote_code=False)", 0),
        ("model.eval()\nimport re\nre.compile('x')", 0),
    ],
)
def test_executors_are_found(source: str, count: int) -> None:
    assert len(foreign_code(source)) == count


class Bomb:
    """Unpickling it would make a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def test_a_pickle_is_refused_wherever_bytes_of_others_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    data = pickle.dumps(Bomb(str(trace)))
    with pytest.raises(PeerError):
        Manifest.from_wire(data)
    for kind in range(32):  # every kind that there is, and more
        with pytest.raises(PeerError):
            decode_header(bytes([kind]) + data)
    file = tmp_path / "state.safetensors"
    file.write_bytes(data)
    with pytest.raises(SafetensorError):
        load_file(file)
    assert not trace.exists()
    pickle.loads(data)  # noqa: S301 - it would have gone off
    assert trace.exists()
