"""The command line, called in this process."""

from contextlib import chdir

from typer.testing import CliRunner

from evict_profile.cli import app


def evict(*words, folder):
    with chdir(folder):
        done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def refused(*words, folder):
    """The one sentence of a command that must end with exit code 2."""
    done = evict(*words, folder=folder)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr
