"""The example's commands, called in this process."""

from typer.testing import CliRunner

from examples.small_world.__main__ import app


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done
