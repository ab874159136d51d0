"""The corpus to train on, and its tokeniser."""

import hashlib
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from examples.small_world.engine.corpus import END, Document, encode, encode_held_out


@dataclass(frozen=True)
class Tokens:
    """Token ids: one stream to train on, and one stream a held-out workload."""

    train: Tensor
    held_out: dict[str, Tensor]


def digest(corpus: list[Document]) -> str:
    """What identifies a corpus: a hash of its names and texts."""
    whole = hashlib.sha256()
    for document in corpus:
        whole.update(f"{document.name}\0{document.workload}\0".encode())
        whole.update(document.text.encode())
    return whole.hexdigest()


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
    train = encode(tokenizer, [d for d in corpus if not d.held_out])
    return Tokens(train, encode_held_out(corpus, tokenizer))
