"""Whatever a runner does, the toolkit answers with a sentence."""

import contextlib
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pytest

from evict_profile import runner as runner_module
from evict_profile.cells import Cell, Reading
from evict_profile.config import load_model
from evict_profile.deadline import Deadline
from evict_profile.errors import ConfigError, MeasurementError
from evict_profile.runner import (
    Runner,
    RunnerCrash,
    RunnerRefusal,
    RunnerStopped,
    runner_command,
)

SCRIPTED = Path(__file__).with_name("runners") / "scripted.py"
CELL = Cell("layers", 4, 8, 64, 1, "balanced")
OTHER = Cell("layers", 2, 4, 64, 1, "balanced")
HERE = "width=4 union=8"

Env = pytest.MonkeyPatch


@pytest.fixture
def model():
    return load_model("tiny")


@pytest.fixture
def opened(tmp_path, model):
    """The scripted runner with the model open; its script is read at each request."""
    with Runner(str(SCRIPTED), None, tmp_path / "runner.log") as runner:
        runner.open(model, {"dtype": "auto"})
        yield runner


@pytest.fixture
def scripted(request, monkeypatch):
    """The scripted runner, told where to misbehave before it starts."""
    variable, value = request.param
    monkeypatch.setenv(variable, value)
    runner: Runner = request.getfixturevalue("opened")
    return runner


def script(variable, value=HERE):
    return pytest.mark.parametrize("scripted", [(variable, value)], indirect=True)


def speaking(tmp_path, code):
    path = tmp_path / "other.py"
    path.write_text(code)
    return Runner(str(path), None, tmp_path / "runner.log")


CHILD = """import os, subprocess
child = subprocess.Popen(["sleep", "600"])
open(__file__.replace("other.py", "pid"), "w").write(str(child.pid))
"""


def ends(pid_file):
    """Is killed within seconds; who inherits it may never collect it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(pid_file.read_text()))
        for _ in range(100):
            if process.status() == psutil.STATUS_ZOMBIE:
                break
            time.sleep(0.1)
        else:
            return False
    return True


ECHO = """
import json, sys
for line in sys.stdin:
    open(__file__.replace("other.py", "asked"), "w").write(line)
    print(json.dumps({"ok": True, "samples": [SAMPLE]}), flush=True)
"""


def test_a_cell_reaches_the_runner_field_by_field(tmp_path, model):
    with speaking(tmp_path, f"SAMPLE = {SAMPLE!r}\n" + ECHO) as runner:
        runner.open(model, {})
        for cell in (CELL, replace(CELL, part="non_moe")):
            runner.measure(cell, [1])
            ask = json.loads((tmp_path / "asked").read_text())
            assert ask["cell"] == vars(cell)
            assert (ask["seeds"], ask["layers"]) == ([1], None)


def test_a_sample_for_each_seed(opened):
    alone = [opened.measure(CELL, [seed])[0].clock_us for seed in (3, 1, 2)]
    assert [s.clock_us for s in opened.measure(CELL, [3, 1, 2])] == alone


OPENS = """
import json, sys
sys.stdin.readline()
say = lambda **words: print(json.dumps(words), flush=True)
say(progress="loading the model"), say(progress="capturing width 4")
say(ok=True, capture_sizes=[4])
"""


def test_words_on_progress_are_shown_before_the_answer(tmp_path, model):
    shown = []
    path = tmp_path / "other.py"
    path.write_text(OPENS)
    with Runner(str(path), None, tmp_path / "log", shown.append) as runner:
        assert runner.open(model, {}) == {"capture_sizes": [4]}
    assert shown == ["loading the model", "capturing width 4"]


@script("SCRIPTED_OOM")
def test_a_refusal_is_an_answer(scripted):
    """With the runner's own words and its kind; the next request is served."""
    with pytest.raises(RunnerRefusal, match="said the script") as caught:
        scripted.measure(CELL, [1])
    assert caught.value.kind == "oom"
    assert len(scripted.measure(OTHER, [1])) == 1


@pytest.mark.parametrize(
    "scripted", [("SCRIPTED_CRASH", HERE), ("SCRIPTED_HALF", HERE)], indirect=True
)
def test_a_crash_without_words_names_its_status(scripted):
    """And no log, which would be empty; half an answer is none."""
    with pytest.raises(RunnerCrash, match=r"ended with status 7 and said nothing$"):
        scripted.measure(CELL, [1])
    assert not scripted.log.exists()


def test_an_interpreter_that_answers_nothing_is_named(tmp_path):
    """What was run, and the option that mends it; nothing is left behind."""
    said = r"^/bin/true .*scripted\.py: answered nothing .* status 0; give --python an"
    with (
        Runner(str(SCRIPTED), "/bin/true", tmp_path / "runner.log") as runner,
        pytest.raises(RunnerCrash, match=said),
    ):
        runner.ask({"do": "open"})
    assert not list(tmp_path.iterdir())


@script("SCRIPTED_RAISE")
def test_a_crash_brings_the_last_words(scripted):
    """The last line of a traceback says more than a status."""
    with pytest.raises(RunnerCrash) as caught:
        scripted.measure(CELL, [1])
    words = "the runner ended with status 1: ArithmeticError: the kernel met its end"
    assert caught.value.words == words
    assert str(caught.value) == f"{words} (log: {scripted.log})"


@script("SCRIPTED_CRASH")
def test_last_words_are_this_process_s_own(scripted, tmp_path, model):
    """A log that an earlier runner wrote to is not quoted for a later one."""
    with scripted.log.open("a") as log:
        log.write("an old story\n")
    with Runner(str(SCRIPTED), None, scripted.log) as later:
        later.open(model, {"dtype": "auto"})
        with pytest.raises(RunnerCrash) as caught:
            later.measure(CELL, [1])
    assert "an old story" not in str(caught.value)


def test_a_log_with_nothing_in_it_does_not_stay(tmp_path):
    """Nor of a python that cannot be run, which is named with the system's reason."""
    log = tmp_path / "runner.log"
    with Runner(str(SCRIPTED), None, log):
        assert log.exists()
    assert not log.exists()
    with pytest.raises(ConfigError, match="--python /no/such/python: cannot be run"):
        Runner(str(SCRIPTED), "/no/such/python", log)
    assert not log.exists()


def test_a_runner_that_does_not_listen_ends_at_ctrl_c(tmp_path, monkeypatch):
    """It is killed, without the time that others have to end by themselves."""
    monkeypatch.setattr(runner_module, "EXIT_TIMEOUT_S", "not asked for")
    pid = tmp_path / "pid"
    deaf = "import os, time\n" + f"open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
    with pytest.raises(KeyboardInterrupt), speaking(tmp_path, deaf + "time.sleep(600)"):
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_runner_that_closes_its_output_and_goes_on_is_killed(tmp_path, monkeypatch):
    """It has crashed for the sweep, which goes on with another."""
    monkeypatch.setattr(runner_module, "EXIT_TIMEOUT_S", 0.2)
    mute = "import os, time\nos.close(1)\ntime.sleep(600)"
    with (
        speaking(tmp_path, mute) as runner,
        pytest.raises(RunnerCrash, match="closed its output and went on"),
    ):
        runner.ask({"do": "open"})


def test_a_runner_that_never_answers_is_killed_with_what_it_started(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(runner_module, "ANSWER_TIMEOUT_S", 1.0)
    deaf = CHILD + "import time\ntime.sleep(600)"
    with speaking(tmp_path, deaf) as runner:
        with pytest.raises(RunnerCrash, match="gave no answer in 1 s and said nothing"):
            runner.ask({"do": "measure"})
        assert ends(tmp_path / "pid")


def test_a_runner_that_hangs_ends_soon_after_the_deadline(tmp_path, monkeypatch):
    """Also one that loads its model."""
    monkeypatch.setattr(runner_module, "EXIT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(runner_module, "OPEN_TIMEOUT_S", 60.0)
    path, now = tmp_path / "hung.py", Deadline(time.monotonic())
    path.write_text("import time\ntime.sleep(600)")
    with (
        Runner(str(path), None, tmp_path / "log", deadline=now) as runner,
        pytest.raises(RunnerStopped, match=r"was killed.*measured is kept"),
    ):
        runner.ask({"do": "open"})


@script("SCRIPTED_SLEEP", "1.5")
def test_an_answer_may_take_as_long_as_the_longest_before(scripted, monkeypatch):
    """Also when the sweep is to stop."""
    monkeypatch.setattr(runner_module, "EXIT_TIMEOUT_S", 1.0)
    scripted.measure(CELL, [1])
    scripted._deadline.at_monotonic = time.monotonic()
    assert scripted.measure(CELL, [1])


def test_a_dead_runner_is_noticed_though_its_child_holds_the_pipe(tmp_path):
    with speaking(tmp_path, CHILD + "os._exit(7)") as runner:
        with pytest.raises(RunnerCrash, match="ended with status 7"):
            runner.ask({"do": "open"})
        assert ends(tmp_path / "pid")


def test_a_runner_outlives_the_thread_that_opened_it(tmp_path):
    """As one of a notebook server does, or of a pool."""
    script = "import runners.protocol as p\np.serve({'open': lambda ask: {}})"
    with ThreadPoolExecutor() as pool:
        runner = pool.submit(speaking, tmp_path, script).result()
        pool.submit(runner.ask, {"do": "open"}).result()
    with runner:
        assert runner.ask({"do": "open"}) == {}


@script("SCRIPTED_CHATTER", "1")
def test_prints_of_a_library_do_not_break_the_protocol(scripted):
    """What else goes to stdout, from Python or from C, ends up in the log."""
    assert len(scripted.measure(CELL, [1, 2])) == 2
    assert "its C code" in scripted.log.read_text()


@pytest.mark.parametrize("word", ["hello", "1", "[]", "{}", "\udcff"])
def test_another_language_is_refused(word, tmp_path):
    """Nor is what is no UTF-8."""
    said = "\ufffd" if word == "\udcff" else re.escape(word)
    said = rf"said '{said}'.*runners/protocol\.py"
    code = f"import os\nos.write(1, {os.fsencode(word)!r} + b'\\n')\ninput()"
    with (
        speaking(tmp_path, code) as runner,
        pytest.raises(MeasurementError, match=said),
    ):
        runner.ask({"do": "open"})


def test_a_script_that_cannot_start_brings_its_error(tmp_path):
    with (
        speaking(tmp_path, "import no_such_engine") as runner,
        pytest.raises(RunnerCrash, match="no module 'no_such_engine'; install it"),
    ):
        runner.ask({"do": "open"})


@pytest.mark.parametrize("name", ["torch_mow", "/no/such/script.py"])
def test_an_unknown_runner_lists_the_known(name):
    with pytest.raises(ConfigError, match=rf"'{name}' is unknown.*torch_moe"):
        runner_command(name, None)


def test_a_runner_finds_the_checkout_and_then_what_its_caller_finds(
    tmp_path, monkeypatch
):
    """So any interpreter finds the protocol, and an engine that lies elsewhere."""
    monkeypatch.setenv("PYTHONPATH", "/engines")
    code = (
        "import json, os, runners.protocol as p\n"
        "p.serve({'open': lambda ask: {'path': os.environ['PYTHONPATH']}})"
    )
    with speaking(tmp_path, code) as runner:
        root, *others = runner.ask({"do": "open"})["path"].split(os.pathsep)
    assert (Path(root) / "runners" / "protocol.py").is_file()
    assert others == ["/engines"]


def test_closing_ends_the_process(opened):
    """No runner is left behind, and closing twice is harmless."""
    opened.close()
    opened.close()
    assert opened._process.returncode == 0


def test_a_draft_clock_never_falls(tmp_path):
    """Each level takes time, so that a sum which is below the one before is noise."""
    code = (
        "import runners.protocol as p\n"
        "times = {'draft_us': [0, 5, 4, 6], 'fixed_us': 1, 'plain_fixed_us': 1}\n"
        "p.serve({'clock': lambda ask: times})"
    )
    with speaking(tmp_path, code) as runner:
        clock = runner.clock(2)
    assert (clock.batch, clock.draft_us) == (2, (0.0, 5.0, 5.0, 6.0))


SAMPLE = dict.fromkeys((field.name for field in fields(Reading)), 0)
LACKING = {name: value for name, value in SAMPLE.items() if name != "clock_us"}


def answering(tmp_path, answer):
    """A runner that gives one answer, whatever it is asked."""
    code = f"import json\ninput()\nprint(json.dumps({answer!r}), flush=True)\ninput()"
    return speaking(tmp_path, code)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"ok": True}, "key 'samples' is missing"),
        ({"ok": False}, "key 'kind' is missing"),
        ({"ok": False, "kind": "ok", "message": "no"}, "kind: must be one of 'device'"),
        ({"ok": True, "samples": [LACKING]}, r"key 'samples\[0\].clock_us' is missing"),
        ({"ok": True, "samples": [{**SAMPLE, "at_unix": "a"}]}, r"samples\[0\].at_"),
        ({"ok": True, "samples": [SAMPLE, SAMPLE]}, "2 samples for 1 seeds"),
    ],
)
def test_an_answer_that_lacks_a_field_is_refused(tmp_path, answer, said):
    """A runner of one's own is named, and so is the field."""
    with (
        answering(tmp_path, answer) as runner,
        pytest.raises(MeasurementError, match=rf"other\.py: .*{said}"),
    ):
        runner.measure(CELL, [1])


def test_a_field_that_no_sample_has_is_left_aside(tmp_path):
    sample = {**SAMPLE, "temperature": 60.0}
    with answering(tmp_path, {"ok": True, "samples": [sample]}) as runner:
        assert runner.measure(CELL, [1]) == [Reading(**SAMPLE)]
