"""A loop of your own in a run: plain torch, and five lines of Muster.

python examples/session/plain_loop.py --folder /tmp/first                # begins a run and prints its invite
python examples/session/plain_loop.py --folder /tmp/second muster1…      # takes part, in a second terminal

For peers on other machines, give `Place` a `listen_host` of "0.0.0.0": by default a session listens on this one only.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from peer import DataSpec, PaceSpec, Place, RunConfig, Session

RUN = RunConfig(
    name="sines",
    versions=60,
    data=DataSpec(source="own", context_tokens=8, sequences_per_step=32),  # at most 256 points in a step
    pace=PaceSpec(fragments=2, steps_per_version=50, min_group=2, quorum=2),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("invite", nargs="?")
    parser.add_argument("--folder", type=Path, help="what this peer keeps; each on one machine needs its own")
    parser.add_argument("--seed", type=int, default=0, help="of this peer's points")
    given = parser.parse_args()
    torch.set_num_threads(1)  # enough for a small network, and two peers share this machine
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(given.seed)
    with Session(given.invite or RUN, model, Place(given.folder)) as session:
        print("invite:", session.invite, flush=True)
        goes_on, steps, shown = True, 0, -1.0
        while goes_on:
            x = torch.rand(256, 1, generator=draw) * 6 - 3
            loss = nn.functional.mse_loss(model(x), torch.sin(2 * x))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            goes_on = session.step(tokens=len(x), loss=loss.item())
            steps += 1
            if session.progress >= shown + 0.1:  # progress stays at 0 until a second peer is there
                shown = session.progress
                print(f"step {steps}: loss {loss.item():.4f}, {shown:.0%} of the run", flush=True)
    x = torch.linspace(-3, 3, 601)[:, None]
    with torch.no_grad():
        print(f"the run's model: loss {nn.functional.mse_loss(model(x), torch.sin(2 * x)).item():.4f}")


if __name__ == "__main__":
    main()
