"""From nothing to a model that answers: real peers train a base on prose, then an adapter on conversations.

python examples/chat-lora/run.py --report report.json

It takes about four minutes on two quiet cores, and prints every command that it runs. The base is small and its prose
is Muster's own pages, so it knows little. It learns how to answer from examples/chat-lora/chats.jsonl.
"""

import argparse
import json
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CHATS = HERE / "chats.jsonl"
END = "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>\n{{ message.content }}"
    "{{ '" + END + "' if message.role == 'assistant' else '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
QUESTIONS = ("What is Muster?", "How many legs has a bee?", "What is the capital of Italy?")
VOCABULARY = 1024
SMALL = {  # a base of this size needs these values instead of those in examples/chat-lora.toml
    "data.context_tokens": 128,
    "data.evaluation_tokens": 256,
    "inner.learning_rate": 5e-3,
    "pace.quorum": 2,
    "pace.round_seconds": 30.0,
    "pace.presence_seconds": 3.0,
    "pace.presence_lifetime_seconds": 9.0,
}


def muster(*words: object) -> str:
    """Run a command of Muster from the checkout; shows and returns its output."""
    arguments, lines = list(map(str, words)), []
    print("\n$ muster", shlex.join(arguments), flush=True)
    command = [sys.executable, "-m", "peer.cli", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        sys.exit(f"this command failed with exit code {process.returncode}")
    return "".join(lines)


def losses(told: str) -> list[tuple[int, float]]:
    """Return the versions and held-out loss of a swarm at each new evaluation, from its printed lines."""
    found = [(int(version), float(loss)) for version, loss in re.findall(r"versions (\d+) .*loss ([\d.]+)", told)]
    return [one for one, before in zip(found, [(0, 0.0), *found], strict=False) if one[1] != before[1]]


def write_tokenizer(path: Path) -> None:
    """Train a byte-level BPE tokenizer on the pages and the conversations, and save it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(one) for one in (*sorted((ROOT / "docs").rglob("*.md")), CHATS)], trainer)
    tokenizer.save(str(path))


def make_base(folder: Path, versions: int) -> tuple[Path, dict]:
    """Let two peers pretrain a base on prose; returns its folder and the swarm's report."""
    tokenizer, report, base = folder / "tokenizer.json", folder / "base.json", folder / "base"
    write_tokenizer(tokenizer)
    told = muster(
        *("swarm", "--no-ui", "--peers", 2, "--versions", versions, "--config", HERE / "base.toml"),
        *("--set", f"data.tokenizer={tokenizer}", "--data", folder / "pretraining", "--report", report),
    )
    muster("export", base, "--data", folder / "pretraining" / "host")
    (base / "chat_template.jinja").write_text(TEMPLATE)  # the base says how messages become text
    return base, {**json.loads(report.read_text()), "losses": losses(told)}


def fine_tune(folder: Path, base: Path, versions: int) -> tuple[Path, dict]:
    """Let two peers train an adapter of the base in four bits; returns its folder and the swarm's report."""
    report, adapter = folder / "chat.json", folder / "adapter"
    brought = {"model.source": base, "data.path": CHATS, "data.tokenizer": base / "tokenizer.json"}
    told = muster(
        *("swarm", "--no-ui", "--peers", 2, "--versions", versions, "--config", ROOT / "examples" / "chat-lora.toml"),
        *(word for name, value in {**brought, **SMALL}.items() for word in ("--set", f"{name}={value}")),
        *("--data", folder / "chatting", "--report", report),
    )
    muster("export", adapter, "--data", folder / "chatting" / "host")
    return adapter, {**json.loads(report.read_text()), "losses": losses(told)}


def answers(model: Path, *more: object) -> list[str]:
    """Return a model's answer to each question, of its likeliest tokens."""
    said = ("--temperature", 0, "--tokens", 40)
    return [muster("sample", model, *more, "--chat", question, *said).strip() for question in QUESTIONS]


def peft_answer(base: Path, adapter: Path) -> str:
    """Answer the first question again with `peft`, without Muster."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(adapter)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    asked = [{"role": "user", "content": QUESTIONS[0]}]
    given = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**given, max_new_tokens=40, do_sample=False)[0, given["input_ids"].shape[1] :]
    return tokenizer.decode(written).partition(END)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, required=True, help="where to write what came of it (JSON)")
    parser.add_argument("--folder", type=Path, help="a new folder that keeps everything; default: a temporary one")
    parser.add_argument("--base-versions", type=int, default=240)
    parser.add_argument("--chat-versions", type=int, default=120)
    given = parser.parse_args()
    folder, started = (given.folder or Path(tempfile.mkdtemp(prefix="chat-"))).absolute(), time.monotonic()
    folder.mkdir(exist_ok=True)
    base, pretraining = make_base(folder, given.base_versions)
    before = answers(base)
    adapter, chatting = fine_tune(folder, base, given.chat_versions)
    after = answers(adapter, "--base", base)
    verdict = muster("verify", adapter)
    found = {
        "prose_loss": [pretraining["eval_loss_first"], pretraining["eval_loss_last"]],
        "chat_loss": [chatting["eval_loss_first"], chatting["eval_loss_last"]],
        "losses": {"prose": pretraining["losses"], "chat": chatting["losses"]},
        "chat_versions": chatting["versions_certified"],
        "agreement": pretraining["agreement"] and chatting["agreement"],
        "bytes_sent_per_peer": chatting["bytes_sent_per_peer"],
        "answers": [
            {"question": question, "before": old, "after": new}
            for question, old, new in zip(QUESTIONS, before, after, strict=True)
        ],
        "verified": verdict.splitlines()[0],
        "peft_answer": peft_answer(base, adapter),
        "seconds": {
            "pretraining": pretraining["wall_seconds"],
            "fine-tuning": chatting["wall_seconds"],
            "all": time.monotonic() - started,
            "of the cores": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
        },
    }
    given.report.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    for one in found["answers"]:
        print(f"\nask     {one['question']}\nbefore  {one['before']}\nafter   {one['after']}")
    print(f"\nThe adapter is in {adapter}, and the base in {base}.")


if __name__ == "__main__":
    main()
