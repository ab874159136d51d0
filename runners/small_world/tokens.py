"""The tokeniser, trained on the training documents, and documents as token ids."""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from runners.small_world.text import WORKLOADS, Document

END = "<|end|>"
"""Stands before the first and behind every document."""


@dataclass(frozen=True)
class Tokens:
    """Token ids: one stream to train on, and one stream a held-out workload.

    Attributes:
        bytes_per_token: of each held-out stream, which turns nats a token into bits a
            byte, the measure that does not depend on the tokeniser.
    """

    train: Tensor
    held_out: dict[str, Tensor]
    bytes_per_token: dict[str, float]


def train_tokenizer(corpus: list[Document], vocab: int) -> Tokenizer:
    """Byte-level BPE of `vocab` tokens; every text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (document.text for document in corpus if not document.held_out)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_corpus(corpus: list[Document], tokenizer: Tokenizer) -> Tokens:
    """The corpus as streams of token ids."""
    held = {
        workload: [d for d in corpus if d.held_out and d.workload == workload]
        for workload in WORKLOADS
    }
    streams = {workload: encode(tokenizer, held[workload]) for workload in WORKLOADS}
    sizes = {w: sum(len(d.text.encode()) for d in held[w]) for w in WORKLOADS}
    return Tokens(
        train=encode(tokenizer, [d for d in corpus if not d.held_out]),
        held_out=streams,
        bytes_per_token={w: sizes[w] / len(streams[w]) for w in WORKLOADS},
    )


def encode(tokenizer: Tokenizer, documents: list[Document]) -> Tensor:
    """Documents as one stream [T], each between ends."""
    end = tokenizer.token_to_id(END)
    ids = [end]
    for encoding in tokenizer.encode_batch([d.text for d in documents]):
        ids += [*encoding.ids, end]
    return torch.tensor(ids, dtype=torch.int32)
