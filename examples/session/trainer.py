"""`transformers.Trainer` in a run: one callback. The model, a small GPT-2 over bytes, reads this Python's own source.

Needs `pip install accelerate`. Begin with `python examples/session/trainer.py --folder /tmp/first`, join as in
plain_loop.py.
"""

import argparse
import ast
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from peer import DataSpec, PaceSpec, Place, RunConfig, Session

CONTEXT, SEQUENCES = 64, 8
RUN = RunConfig(
    name="trainer",
    versions=40,
    data=DataSpec(source="own", context_tokens=CONTEXT, sequences_per_step=SEQUENCES),
    pace=PaceSpec(fragments=4, steps_per_version=20, min_group=2, quorum=2),
)


class InRun(TrainerCallback):
    """Reports every step of the optimizer to the session, and ends the training with the run."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.session.step(tokens=CONTEXT * SEQUENCES):
            control.should_training_stop = True


class Windows(torch.utils.data.Dataset):
    """Pieces of the standard library's text."""

    def __init__(self) -> None:
        source = Path(ast.__file__).parent
        self.text = b"".join((source / name).read_bytes() for name in ("ast.py", "typing.py", "dis.py"))

    def __len__(self) -> int:
        return len(self.text) - CONTEXT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(list(self.text[index : index + CONTEXT]))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("invite", nargs="?")
    parser.add_argument("--folder", type=Path, help="what this peer keeps; each on one machine needs its own")
    parser.add_argument("--seed", type=int, default=0, help="of the order of this peer's data")
    given = parser.parse_args()
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=2, n_positions=CONTEXT, vocab_size=256, bos_token_id=None, eos_token_id=None
    )
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=100_000,  # never reached: the run ends the training
        per_device_train_batch_size=SEQUENCES,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        logging_steps=50,
        data_seed=given.seed,
        use_cpu=True,
    )
    with Session(given.invite or RUN, model, Place(given.folder)) as session:
        print("invite:", session.invite, flush=True)
        Trainer(model, arguments, train_dataset=Windows(), callbacks=[InRun(session)]).train()


if __name__ == "__main__":
    main()
