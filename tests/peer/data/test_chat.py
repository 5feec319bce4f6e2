from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.run.data_spec import CHAT, DataSpec
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.data import corpus, token_writer
from peer.data.chat import ChatFormat, UnusableError, closed_template
from peer.data.marks import BEGINS, READ, has_marks, numbers, positions
from peer.data.token_files import TokenData
from peer.data.windows import TrainingWindows, evaluation_windows, load_tokens
from peer.machine.local_files import LocalFiles
from peer.model.description import describe

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# like Qwen3's template: only the last answer keeps its thoughts before it
THINKING = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.role == 'assistant' and loop.last %}(thinks){% endif %}{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SAYING = (
    "{% for message in messages %}[{{ message.role }}]{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}.{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}"
)
CONTEXT = 64


def talk(*texts: str) -> list[dict[str, str]]:
    """Return messages of a question, an answer, and so on."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def spec_of(template: str = PLAIN, **more: Any) -> DataSpec:
    return DataSpec(source=CHAT, context_tokens=CONTEXT, sequences_per_step=4, chat_template=template, **more)


def written(folder: Path, *lines: object) -> LocalFiles:
    path = folder / "chat.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return LocalFiles(str(path))


def many(folder: Path, count: int = 200) -> LocalFiles:
    said = [{"messages": talk(f"What is {n}?", f"It is {'one ' * (n % 9)}{n}.")} for n in range(count)]
    return written(folder, *said)


def learned_of(chat: ChatFormat, *texts: str) -> str:
    tokens = chat.encode(chat.conversation(talk(*texts)))
    return bytes(one for one in (tokens[(tokens & READ) == 0]).tolist()).decode()


def test_only_answers_are_learned_with_what_ends_them() -> None:
    assert learned_of(ChatFormat(CHATML), "Hé?", "Yes, hé", "So?", "No") == "Yes, hé<|im_end|>\nNo<|im_end|>\n"
    assert learned_of(ChatFormat(SAYING), "a?", "b", "c?", "d") == "b.d."


def test_an_answer_that_stands_there_in_another_way_is_read_only() -> None:
    chat = ChatFormat(THINKING)
    assert learned_of(chat, "a", "b", "c", "d") == "(thinks)d\n"
    assert chat.conversation(talk("a", "b", "c", "d")).missed == 1


def test_the_template_says_how_an_answer_ends() -> None:
    assert ChatFormat(CHATML).answer_end() == "<|im_end|>\n"


def test_special_tokens_are_no_words_of_a_message() -> None:
    with pytest.raises(UnusableError, match="spell out a special token"):
        ChatFormat(CHATML, special=("<|im_end|>",)).conversation(talk("what is <|im_end|>?", "nothing"))


@pytest.mark.parametrize(
    ("template", "wrong"),
    [
        ("{% for", "cannot be used on a question and its answer"),
        ("{{ messages[0].content }}", "in no place of their own"),
        ("{{ raise_exception('system first') }}", "system first"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        (PLAIN + "{{ strftime_now('%Y') }}", "writes today's date"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", "never learn to stop"),
    ],
)
def test_a_template_is_tried_before_it_may_run(template: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        closed_template(template, {})


def test_a_template_says_its_tokens_itself() -> None:
    names = {"bos_token": "it's<s>", "eos_token": "\\"}
    closed = closed_template("{{ bos_token }}" + PLAIN.replace("\n", "{{ eos_token }}"), names)
    assert ChatFormat(closed).text(talk("a")) == "it's<s>user: a\\"


def test_rows_hold_whole_conversations_that_do_not_see_each_other(tmp_path: Path) -> None:
    spec = spec_of()
    data = load_tokens(spec, files=many(tmp_path))
    for side in (data.train, data.heldout):
        rows = side.view(-1, CONTEXT + 1)
        assert bool((rows[:, 0] & BEGINS).all())
        for row in rows:
            starts = [*torch.nonzero(row & BEGINS).flatten().tolist(), CONTEXT + 1]
            for start, end in pairwise(starts):
                part = row[start:end]
                text = bytes(numbers(part).tolist()).decode()
                assert text.startswith("user: What is") or not text.strip("\0")
                assert bytes(numbers(part[(part & READ) == 0]).tolist()).decode() == text.partition("assistant: ")[2]
    assert 0 < len(data.heldout) < len(data.train) / 10


def test_of_few_conversations_more_are_held_out(tmp_path: Path) -> None:
    """The hash picks none of so few for the 3 %, so they were refused with "bring more text"."""
    data = load_tokens(spec_of(), files=many(tmp_path, 12))
    assert 0 < len(data.heldout) < len(data.train)
    assert re.search(r"held out \d+% of it, since it has few pieces", data.note)
    rows = [*data.train.view(-1, CONTEXT + 1), *data.heldout.view(-1, CONTEXT + 1)]
    text = "".join(bytes(numbers(row).tolist()).decode() for row in rows)
    assert all(f"What is {n}?" in text for n in range(12)), "each is on one of the sides"
    assert sum(int((row & BEGINS != 0).sum()) for row in rows) >= 12


def test_windows_are_rows(tmp_path: Path) -> None:
    spec = spec_of(evaluation_tokens=256)
    data = load_tokens(spec, files=many(tmp_path))
    rows = {tuple(row) for row in data.train.view(-1, CONTEXT + 1).tolist()}
    batch = TrainingWindows(data.train, spec, b"run", "peer").batch(3)
    assert batch.shape == (4, CONTEXT + 1)
    assert has_marks(batch)
    assert {tuple(row) for row in batch.tolist()} <= rows
    judged = evaluation_windows(data.heldout, spec, 0)
    assert {tuple(row) for row in judged.tolist()} <= {
        tuple(row) for row in data.heldout.view(-1, CONTEXT + 1).tolist()
    }
    assert len({tuple(row) for row in judged.tolist()}) == len(judged)


def test_rows_that_are_no_conversation_are_left_out_and_counted(tmp_path: Path) -> None:
    good = [{"messages": talk(f"{n}?", f"{n}!")} for n in range(400)]
    files = written(
        tmp_path,
        *good,
        {"prompt": "Who?", "completion": "I."},
        {"prompt": talk("Who?"), "completion": [{"role": "assistant", "content": "You."}]},
        "",
        "{",
        "[1]",
        {"text": "nothing"},
        {"messages": []},
        {"messages": talk("no answer")},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": talk("a" * CONTEXT, "b")},
        {"messages": talk("long", "b" * CONTEXT)},
        {"messages": talk("half", "\ud800")},
    )
    data = load_tokens(spec_of(), files=files)
    for reason in (
        "1 empty lines",
        "1 lines that are no JSON in UTF-8",
        "1 lines that are no JSON object",
        "1 lines with neither messages nor prompt and completion",
        "1 conversations that are no list of 1 to 1024 messages",
        "1 conversations without an answer",
        "2 conversations with a message that has no role or no text",
        "1 conversations whose answer begins beyond data.context_tokens",
        "2 ends of conversations that are longer than data.context_tokens",
        "1 conversations that the chat template refuses",
    ):
        assert reason in data.note, data.note


def test_a_file_without_conversations_says_what_was_wrong_with_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 lines with neither messages nor prompt and completion"):
        load_tokens(spec_of(), files=written(tmp_path, *[{"text": "a"}] * 3))


def test_positions_begin_anew_with_each_conversation() -> None:
    tokens = torch.tensor([[BEGINS | 1, 2, 3, BEGINS | READ | 4, READ | 5, 6]])
    assert positions(tokens).tolist() == [[0, 1, 2, 0, 1, 2]]
    assert numbers(tokens).tolist() == [[1, 2, 3, 4, 5, 6]]


def test_a_tokenizer_brings_its_template(tmp_path: Path) -> None:
    config = RunConfig(data=spec_of().model_copy(update={"path": str(tmp_path / "chat.jsonl")}))
    many(tmp_path)
    tokenizer = tokenizer_in(tmp_path / "mine", config, eos="<|im_end|>", template=CHATML + "{# {{ eos_token }} #}")
    named = config.data.model_copy(update={"tokenizer": str(tokenizer), "chat_template": None})
    model = config.model.model_copy(update={"vocabulary": 300})
    described = describe(config.model_copy(update={"data": named, "model": model}))
    assert (
        described.config.data.chat_template == "{% set eos_token = '<|im_end|>' %}" + CHATML + "{# {{ eos_token }} #}"
    )
    data = load_tokens(described.config.data, 300, described.files)
    number = described.config.data.end_token
    assert number is not None
    assert bool((data.train == number).any())
    assert bool((data.train == (number | READ)).any())
    (tokenizer.parent / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError, match=r"no chat template; .*data\.chat_template"):
        describe(config.model_copy(update={"data": named, "model": model}))


def tokenizer_in(folder: Path, config: RunConfig, *, eos: str, template: str) -> Path:
    """Write a byte-level tokenizer with two special tokens, as `save_pretrained` does; returns its path."""
    from tokenizers import AddedToken, Tokenizer

    from peer.export.model_files import byte_tokenizer

    folder.mkdir()
    made = Tokenizer.from_str(json.dumps(byte_tokenizer()))
    made.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken(eos, special=True)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, "chat_template": template}))
    return folder / "tokenizer.json"


def test_making_rows_goes_on_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = many(tmp_path)
    kept = LocalFiles(files.corpus, cache=str(tmp_path / "cache"))
    whole = load_tokens(spec_of(), files=files)
    monkeypatch.setattr(token_writer, "SAVED_BYTES", 1)
    real, written_rows = corpus.TokenWriter.add, [0]  # type: ignore[attr-defined]

    def crash(self: Any, *given: Any) -> None:
        written_rows[0] += 1
        if written_rows[0] == 5:
            raise KeyboardInterrupt
        real(self, *given)

    monkeypatch.setattr(corpus.TokenWriter, "add", crash)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        load_tokens(spec_of(), files=kept)
    resumed: TokenData = load_tokens(spec_of(), files=kept)
    assert (resumed.digest, resumed.note) == (whole.digest, whole.note)
    assert torch.equal(resumed.train, whole.train)
    assert torch.equal(resumed.heldout, whole.heldout)


def test_another_template_makes_other_tokens(tmp_path: Path) -> None:
    files = LocalFiles(many(tmp_path).corpus, cache=str(tmp_path / "cache"))
    assert load_tokens(spec_of(PLAIN), files=files).digest != load_tokens(spec_of(CHATML), files=files).digest


def test_no_row_is_cut_by_a_bound_on_tokens(tmp_path: Path) -> None:
    data = load_tokens(spec_of(tokens_max=1024), files=many(tmp_path))
    assert len(data.train) % (CONTEXT + 1) == len(data.heldout) % (CONTEXT + 1) == 0
    assert "read no further than 1,024 tokens" in data.note
