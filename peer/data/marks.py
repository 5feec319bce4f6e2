"""What is said of a token beside its number: that a document begins with it, and that it is read but not learned.

A sequence may hold several documents of which none sees another, and tokens that only lead up to those which the model
is to learn. Both are bits above the token's number, so sequences are stored, cut, dealt out and hashed as all others.
Tokens without marks are learned, and belong to one document.
"""

from __future__ import annotations

import torch
from torch import Tensor

BEGINS = 1 << 29
READ = 1 << 28  # no loss where it is to be predicted
UNLEARNED = -100  # in place of a target; torch's cross entropy leaves it out
_NUMBER = READ - 1  # a vocabulary has at most 2**20 tokens


def has_marks(tokens: Tensor) -> bool:
    """Whether any of them has one."""
    return bool((tokens > _NUMBER).any())


def numbers(tokens: Tensor) -> Tensor:
    """The tokens alone, of the same shape and type."""
    return tokens & _NUMBER


def positions(tokens: Tensor) -> Tensor:
    """Each token's place in its document, int64, shape (sequences, tokens); the first of a sequence begins one."""
    places = torch.arange(tokens.shape[-1], device=tokens.device)
    begun = torch.where((tokens & BEGINS) != 0, places, 0)
    return places - begun.cummax(-1).values


def inputs_of(tokens: Tensor, marked: bool) -> dict[str, Tensor]:
    """What a model of `transformers` is called with to predict all but the first token of each sequence.

    Positions that begin anew are how it learns of documents: it makes attention masks by them.
    """
    before = tokens[:, :-1]
    if not marked:
        return {"input_ids": before}
    return {"input_ids": numbers(before), "position_ids": positions(before)}


def targets_of(tokens: Tensor, marked: bool) -> Tensor:
    """What is to be predicted, int64, shape (sequences * (tokens - 1),); UNLEARNED where nothing is."""
    after = tokens[:, 1:].flatten()
    return torch.where((after & READ) != 0, UNLEARNED, numbers(after)) if marked else after


def weight_of(sequences: Tensor, marked: bool) -> int:
    """What the mean loss over these sequences counts in a mean over more: their learned tokens, or all are alike."""
    return int(((sequences[:, 1:] & READ) == 0).sum()) if marked else len(sequences)
