"""Documents: code and prose apart, files on one side, sides that stay; and tokens."""

from examples.small_world.corpus import digest, encode_corpus, train_tokenizer
from examples.small_world.engine.corpus import (
    END,
    Document,
    encode,
    read_corpus,
    separate,
)

SOURCE = '''"""Module.

    Indented.
"""
x = "kept"  # why
def f():
    """What f does."""
    # step
    return "# not a comment"
'''


def test_code_and_prose_are_told_apart():
    code, prose = separate(SOURCE)
    assert code == 'x = "kept"\ndef f():\n    return "# not a comment"\n'
    assert prose == "Module.\n\nIndented.\n\nwhy\nWhat f does.\n\nstep\n"


def test_both_documents_of_a_file_are_on_one_side(library):
    """Prose about held-out code is held out with it; each side has both kinds."""
    corpus = read_corpus(library)
    held = {d.name for d in corpus if d.held_out}
    assert {d.name for d in corpus} > held > set()
    for workload in ("code", "prose"):
        assert {d.name for d in corpus if d.held_out and d.workload == workload} == held


def test_the_side_follows_from_the_name_alone():
    """A file that was edited, as in another Python, stays where it was."""
    names = [f"package/module{i}.py" for i in range(50)]
    sides = [Document(name, "code", "old").held_out for name in names]
    assert sides == [Document(name, "prose", "new").held_out for name in names]


def test_tests_are_not_read(library):
    assert not any("test_module" in d.name for d in read_corpus(library))


def test_the_digest_knows_every_letter_of_what_can_be_parsed(library):
    before = digest(read_corpus(library))
    (library / "bad.py").write_text("def " * 100)
    assert digest(read_corpus(library)) == before
    path = library / "module0.py"
    path.write_text(path.read_text() + "y = 1\n")
    assert digest(read_corpus(library)) != before


def test_topics_of_the_reference_are_prose(library):
    (library / "pydoc_data").mkdir()
    text = f"topics = {{'for': {'loop ' * 60!r}, 'if': {'test ' * 60!r}}}\n"
    (library / "pydoc_data" / "topics.py").write_text(text)
    found = [d for d in read_corpus(library) if "topics" in d.name]
    assert [(d.name[-4:], d.workload) for d in found] == [
        ("/for", "prose"),
        ("y/if", "prose"),
    ]


def test_any_text_survives(library):
    tokenizer = train_tokenizer(read_corpus(library), 400)
    text = "naïve ☃\n\tdef  x(): pass\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() <= 400


def test_training_is_deterministic(library):
    corpus = read_corpus(library)
    one, two = (train_tokenizer(corpus, 400).to_str() for _ in range(2))
    assert one == two


def test_streams_hold_their_side_only(library):
    corpus = read_corpus(library)
    tokenizer = train_tokenizer(corpus, 400)
    tokens = encode_corpus(corpus, tokenizer)
    held = [d for d in corpus if d.held_out]
    end = tokenizer.token_to_id(END)
    assert int((tokens.train == end).sum()) == len(corpus) - len(held) + 1
    for workload, stream in tokens.held_out.items():
        mine = [d for d in held if d.workload == workload]
        assert stream.tolist() == encode(tokenizer, mine).tolist()
