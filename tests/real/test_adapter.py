"""Real peers fine-tune a base of a hundred million parameters in four bits; one is killed, one lacks the base.

`pytest -s` prints what docs/research/results/adapters.md records: bytes, memory, seconds.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from coordinator.views.control import ask
from coordinator.views.snapshot import PeerSnapshot
from peer.cli.terms import parameters, upload_bytes_per_version
from peer.export.source import known_run
from peer.learner.ranks.first_rank import cpu_seconds_of
from peer.model.base import BASE_FILE
from peer.numerics.codec import CODECS
from peer.storage.base_place import BASE_FOLDER
from tests.real.conftest import Machines, invite_of, muster, version_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(1500)]

RANK = 8
RUN = """
name = "hundred-million"
versions = 100000
[model]
source = "{base}"
[adapter]
rank = {rank}
alpha = 16
base_precision = "nf4"
give_base = true
[data]
context_tokens = 32
sequences_per_step = 1
evaluation_tokens = 256
[inner]
optimizer = "adamw8bit"
learning_rate = 1e-3
warmup_steps = 2
[pace]
fragments = 2
steps_per_version = 4
round_seconds = 60.0
quorum = 2
presence_seconds = 2.0
presence_lifetime_seconds = 8.0
"""
GIGABYTE = 1e9
BYTES_PER_PARAMETER = 40
FINAL_SECONDS = 300.0  # a host evaluates once more


def make_base(folder: Path) -> int:
    """Save a model over bytes, drawn from a seed, in bfloat16; returns its number of parameters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama",
        vocab_size=256,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=15,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return sum(one.numel() for one in model.parameters())


def peak_bytes(pid: int) -> int:
    """Return the peak memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def spent_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children, which tells more than a clock on a busy machine."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(cpu_seconds_of, (pid, *map(int, children))))


def join(machines: Machines, name: str, invite: str, *more: str) -> Path:
    return machines.peer(name, "join", invite, "--yes", "--threads", "1", *more)


def trains(now: PeerSnapshot) -> bool:
    return now.state == "training"


def sent_per_cycle(machines: Machines, learners: list[Path], cycles: int) -> float:
    """Measure the mean bytes, of all kinds, that a learner sends while every fragment gets a version.

    A void round, as on a busy machine, counts as if it had made one. The bytes that the host fetches late are few
    beside many cycles.
    """
    before = [machines.wait(data, lambda now: True) for data in learners]
    machines.wait(learners[0], lambda now: version_of(now) >= version_of(before[0]) + cycles)
    after = [machines.wait(data, lambda now: True) for data in learners]
    sent = sum(now.bytes_sent for now in after) - sum(now.bytes_sent for now in before)
    versions = rounds(after) - rounds(before)
    return sent * len(after[0].fragments) / versions


def rounds(peers: list[PeerSnapshot]) -> int:
    """Return the number of rounds over all fragments of all these peers, including void ones."""
    return sum(one.version for now in peers for one in now.fragments) + sum(
        now.events.get("round_void", 0) for now in peers
    )


def agreed(machines: Machines, host: Path, learners: list[Path]) -> bool:
    """Pause all learners, and return whether all peers hold the same versions with the certified digests."""
    for data in learners:
        ask(data, "pause")
    for data in learners:
        machines.wait(data, lambda now: now.state == "paused" and not now.rounds_in_flight)
    peers = [host, *learners]
    newest = [max(versions) for versions in zip(*(versions_of(machines, one) for one in peers), strict=True)]
    for data in peers:
        machines.wait(data, lambda now: [one.held_version for one in now.fragments] == newest)
    finals = [PeerSnapshot.model_validate(ask(data, "final", FINAL_SECONDS)["snapshot"]) for data in peers]
    states = [tuple(one.state for one in final.fragments) for final in finals]
    return len(set(states)) == 1 and all(final.digests_from_tensors == states[0] for final in finals)


def versions_of(machines: Machines, data: Path) -> list[int]:
    return [one.version for one in machines.wait(data, lambda now: True).fragments]


def test_a_base_of_a_hundred_million_in_four_bits(machines: Machines) -> None:
    base, figures = machines.folder / "base", dict[str, object]()
    assert make_base(base) >= 100e6
    machines.run = RUN.format(base=base, rank=RANK)
    host = machines.host()
    one = join(machines, "one", invite_of(host), "--base", str(base))
    two = join(machines, "two", invite_of(host))  # its owner has no copy of the base
    machines.wait(two, lambda now: trains(now) and version_of(now) >= 1)
    config = known_run(host, "").config
    trained = parameters(config)
    assert "fetching the base" in machines.said("two")
    fetched = next(two.glob(f"run-*/{BASE_FOLDER}"))
    assert (fetched / BASE_FILE).read_bytes() == (base / BASE_FILE).read_bytes()

    # traffic of two that train, and of a host that asks one of them for each step
    own, step = upload_bytes_per_version(config, members=2), CODECS[config.outer.result_codec].encoded_bytes(trained)
    figures["bytes a cycle, predicted"] = predicted = own + step / 2
    figures["bytes a cycle"] = sent = sent_per_cycle(machines, [one, two], 12)

    # killed, and back
    machines.kill("one")
    stopped_at = version_of(machines.wait(two, lambda now: True))
    join(machines, "one", invite_of(host), "--base", str(base))
    machines.wait(one, lambda now: trains(now) and version_of(now) > stopped_at and now.own_tokens > 0)

    # a newcomer that has the base
    began = time.monotonic()
    three = join(machines, "three", invite_of(two), "--base", str(fetched))
    machines.wait(three, trains)
    figures["seconds until a newcomer trains"] = time.monotonic() - began
    figures["processor seconds of it"] = spent_seconds(machines.processes["three"].pid)
    machines.wait(three, lambda now: now.own_tokens > 0)
    assert agreed(machines, host, [one, two, three])

    # memory beside the learner
    allowed = GIGABYTE + BYTES_PER_PARAMETER * trained
    peaks = {name: peak_bytes(machines.processes[name].pid) for name in ("one", "two", "three")}
    figures |= {"adapter": trained, "memory beside the learner": peaks, "allowed": allowed}
    print(json.dumps(figures, indent=1))
    assert max(peaks.values()) <= allowed
    assert 0.9 * predicted <= sent <= 1.05 * predicted

    # the export; each command finds the base where the peer has it
    assert muster("sample", "--data", str(two), "--prompt", "a", "--tokens", "4", "--temperature", "0").startswith("a")
    machines.end("host")
    adapter = machines.folder / "adapter"
    muster("export", str(adapter), "--data", str(host))
    assert "is whole" in muster("verify", str(adapter))
    muster("export", str(machines.folder / "whole"), "--merged", "--data", str(host))
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(32).reshape(1, -1)
    plain = AutoModelForCausalLM.from_pretrained(fetched, dtype=torch.bfloat16)
    with torch.no_grad():
        before = plain(input_ids=tokens).logits
        after = PeftModel.from_pretrained(plain, adapter)(input_ids=tokens).logits
    assert not torch.equal(before, after)
