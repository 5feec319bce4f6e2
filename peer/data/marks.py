"""Marks on tokens: that a document begins with a token, and that a token is read but not learned.

A sequence may hold several documents that do not see each other, and tokens that only lead up to the ones to learn.
Both marks are bits above the token's number, so sequences are stored, cut, assigned and hashed like all others.
Tokens without marks are learned, and belong to one document.
"""

from __future__ import annotations

import torch
from torch import Tensor

BEGINS = 1 << 29
READ = 1 << 28  # the prediction of this token adds no loss
UNLEARNED = -100  # replaces a target; torch's cross entropy ignores it
_NUMBER = READ - 1  # a vocabulary has at most 2**20 tokens


def has_marks(tokens: Tensor) -> bool:
    """Whether any of the tokens has a mark."""
    return bool((tokens > _NUMBER).any())


def numbers(tokens: Tensor) -> Tensor:
    """Return the tokens without marks, of the same shape and type."""
    return tokens & _NUMBER


def positions(tokens: Tensor) -> Tensor:
    """Return each token's position in its document, int64[sequences, tokens]; a sequence's first token begins one."""
    places = torch.arange(tokens.shape[-1], device=tokens.device)
    begun = torch.where((tokens & BEGINS) != 0, places, 0)
    return places - begun.cummax(-1).values


def inputs_of(tokens: Tensor, marked: bool) -> dict[str, Tensor]:
    """Return a `transformers` model's arguments for predicting all but the first token of each sequence.

    Positions that restart at 0 tell it about documents: it derives the attention masks from them.
    """
    before = tokens[:, :-1]
    if not marked:
        return {"input_ids": before}
    return {"input_ids": numbers(before), "position_ids": positions(before)}


def targets_of(tokens: Tensor, marked: bool) -> Tensor:
    """Return the tokens to predict, int64, shape (sequences * (tokens - 1),); UNLEARNED where none is."""
    after = tokens[:, 1:].flatten()
    return torch.where((after & READ) != 0, UNLEARNED, numbers(after)) if marked else after


def weight_of(sequences: Tensor, marked: bool) -> int:
    """Return the weight of these sequences' mean loss in a larger mean: their learned tokens, or their number."""
    return int(((sequences[:, 1:] & READ) == 0).sum()) if marked else len(sequences)
