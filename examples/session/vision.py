"""A vision model in a run: a small convolutional network on images that this file draws itself.

No data set is downloaded: discs, squares and crosses at random places under noise. It shows how to use a session and
is no benchmark. Begin with `python examples/session/vision.py --folder /tmp/first`, join as in plain_loop.py.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from peer import DataSpec, PaceSpec, Place, RunConfig, Session

SIDE, IMAGES = 16, 64
RUN = RunConfig(
    name="shapes",
    versions=40,
    data=DataSpec(source="own", context_tokens=8, sequences_per_step=8),  # 64 images in a step
    pace=PaceSpec(fragments=2, steps_per_version=25, min_group=2, quorum=2),
)


def shapes(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw images, shape (IMAGES, 1, SIDE, SIDE), and return them with their kinds: 0 disc, 1 square, 2 cross."""
    kinds = torch.randint(0, 3, (IMAGES,), generator=draw)
    centres = torch.randint(4, SIDE - 4, (2, IMAGES, 1, 1), generator=draw)
    down, right = (torch.arange(SIDE).view(-1, 1) - centres[0]).abs(), (torch.arange(SIDE) - centres[1]).abs()
    discs, squares = down**2 + right**2 <= 9, torch.maximum(down, right) <= 2
    crosses = ((down == 0) | (right == 0)) & (torch.maximum(down, right) <= 3)
    drawn = torch.stack((discs, squares, crosses))[kinds, torch.arange(IMAGES)].float()
    return (drawn + 0.3 * torch.randn(drawn.shape, generator=draw))[:, None], kinds


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveMaxPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 3)),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("invite", nargs="?")
    parser.add_argument("--folder", type=Path, help="what this peer keeps; each on one machine needs its own")
    parser.add_argument("--seed", type=int, default=0, help="of this peer's images")
    given = parser.parse_args()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(given.seed)
    with Session(given.invite or RUN, model, Place(given.folder)) as session:
        print("invite:", session.invite, flush=True)
        goes_on = True
        while goes_on:
            images, kinds = shapes(draw)
            loss = nn.functional.cross_entropy(model(images), kinds)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            goes_on = session.step(tokens=IMAGES, loss=loss.item())
    model.eval()
    images, kinds = shapes(torch.Generator().manual_seed(-1))
    right = (model(images).argmax(1) == kinds).float().mean().item()
    print(f"the run's model names {right:.0%} of {IMAGES} new shapes")


if __name__ == "__main__":
    main()
