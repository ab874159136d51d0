"""The tokeniser and its streams."""

from pathlib import Path

from runners.small_world.text import read_corpus
from runners.small_world.tokens import END, encode, encode_corpus, train_tokenizer


def test_any_text_survives(library: Path) -> None:
    """Bytes that training never saw are tokens too."""
    tokenizer = train_tokenizer(read_corpus(library, tests=False), 400)
    text = "naïve ☃\n\tdef  x(): pass\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() <= 400


def test_training_is_deterministic(library: Path) -> None:
    """The same text gives the same tokeniser."""
    corpus = read_corpus(library, tests=False)
    one, two = (train_tokenizer(corpus, 400).to_str() for _ in range(2))
    assert one == two


def test_streams_hold_their_side_only(library: Path) -> None:
    """Documents stand between ends; no held-out document is in the training stream."""
    corpus = read_corpus(library, tests=False)
    tokenizer = train_tokenizer(corpus, 400)
    tokens = encode_corpus(corpus, tokenizer)
    held = [d for d in corpus if d.held_out]
    end = tokenizer.token_to_id(END)
    assert int((tokens.train == end).sum()) == len(corpus) - len(held) + 1
    for workload, stream in tokens.held_out.items():
        mine = [d for d in held if d.workload == workload]
        assert stream.tolist() == encode(tokenizer, mine).tolist()
        size = sum(len(d.text) for d in mine)
        assert tokens.bytes_per_token[workload] == size / len(stream)
