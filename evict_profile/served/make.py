"""Runs into a served table: of one deployment, with steps that can be, named as typed.

A table's runs differ in their drafts, batches, contexts and texts, and in no other
fact. A drafting step that is surely below the plain one is no step: it verifies more
tokens and drafts too, so an accepted length is missing, or rows are of two servers.
A noisy step is no fault: its interval holds the noise.
"""

import re
from collections.abc import Mapping, Sequence

from evict_profile.config.load import known_models
from evict_profile.config.names import model_named
from evict_profile.errors import ConfigError
from evict_profile.served.findings import UNLIKE
from evict_profile.served.probe.record import near
from evict_profile.served.run import Run, check_one_deployment
from evict_profile.served.setting import FEWEST, Setting, check_repeats, same_context
from evict_profile.served.table import NOT_STATED, SERVED, ServedTable, Shape
from evict_profile.table import CostTable, Key
from evict_profile.table.search import words
from evict_profile.table.store import FIRST_VERSION

WIDEST = 16
"""Width up to which a shape has each width; beyond it, the power law goes on."""


def served_table(
    runs: Sequence[Run],
    left_out: Mapping[str, str],
    model: str,
    gpu: str,
    shape: Shape | None = None,
) -> ServedTable:
    """The first version of a table of runs; `save_next` counts versions.

    Args:
        left_out: why other runs were left out, by source.
        model, gpu: names as typed. They are labels, and runs may contradict them.

    Raises:
        ConfigError: no run, several deployments, another model or GPU than typed, K
            that changes, or a step that cannot be.
    """
    timed = [run for run in runs if run.step_us]
    if not timed:
        where = f"{runs[0].source}: " if runs else ""
        raise ConfigError(
            f"{where}holds no run with a step: give step ms, or tok/s with the "
            "accepted length, of plain decoding and of one K"
        )
    _check(timed, model, gpu)
    table = ServedTable(
        _key(timed, model, gpu), FIRST_VERSION, tuple(timed), dict(left_out), shape
    )
    for each in table.settings:
        check_repeats(each)
        if len({*map(_file, each.runs)}) < FEWEST and (said := _two_texts(each)):
            raise ConfigError(said)
        for plain in table.settings:
            _check_beside(each, plain)
    if not any(table.batches(context) for context in table.contexts or (None,)):
        raise _incomparable(table.settings)
    return table


def shape_of(table: CostTable) -> Shape:
    """The growth of a cost table's forward in the width, at its smallest context."""
    context = table.fit.domain["context"][0]
    forwards = {b: table.step_cost_us(b, context) for b in table.axes.batch}
    widest = min((len(us) - 1) // batch for batch, us in forwards.items())
    widths = tuple(n for n in range(1, WIDEST + 1) if n <= widest)
    growth = tuple(
        tuple(round(float(us[batch * n] / us[batch]), 4) for n in widths)
        for batch, us in forwards.items()
    )
    return Shape(f"{table.title}, {table.version}", tuple(forwards), widths, growth)


def assumed(table: ServedTable) -> tuple[str, ...]:
    """What the key states and no run does, and texts that no run states."""
    stated = {run.deployment.model for run in table.runs} - {""}
    labels = [
        f"runs state the model {name}, and {table.key.model} is taken as a name of it"
        for name in sorted(stated)
        if not (_words(name) & _words(table.key.model))
    ]
    labels += [said for each in table.settings if (said := _two_texts(each))][:1]
    if not any(run.deployment.tp for run in table.runs):
        labels.append("no run states its tensor-parallel size, and 1 is assumed")
    return tuple(labels)


def _check(runs: Sequence[Run], model: str, gpu: str) -> None:
    for run in runs:
        drafted = run.load.drafted
        if drafted is not None and not near(drafted, run.drafts):
            raise ConfigError(
                f"{run.source}: K is not the same at each step: {drafted:.2f} tokens "
                f"are drafted, and K = {run.drafts} is stated; a table needs steps of "
                "one K, so start the server with one that does not change (llama.cpp: "
                "--spec-draft-p-min 0)"
            )
    check_one_deployment((run.source, run.deployment) for run in runs)
    for run in {str(run.deployment): run for run in runs}.values():
        _check_names(run, model, gpu)


def _check_names(run: Run, model: str, gpu: str) -> None:
    own = run.deployment
    if own.model and not _same_model(own.model, model):
        name, served, typed = "model", own.model, model
    elif own.gpu and not _same_gpu(own.gpu, gpu):
        name, served, typed = "gpu", own.gpu, gpu
    else:
        return
    raise ConfigError(
        f"{run.source}: states the {name} {served}, and --{name} {typed} was given; "
        "name what served, or give the runs of the other"
    )


def _same_model(served: str, typed: str) -> bool:
    """Whether two names may be of one model; a name that shares no word is a label."""
    known = [path.stem for path in known_models()]
    of_shape = [model_named(name, known) for name in (served, typed)]
    if all(of_shape) and of_shape[0] != of_shape[1]:
        return False
    one, other = _words(served), _words(typed)
    return one <= other or other <= one or not one & other


def _words(name: str) -> set[str]:
    """The words of a model's name, without its owner."""
    return set(re.findall(r"[\w.]+", name.rpartition("/")[2].lower().replace("_", "-")))


def _same_gpu(served: str, typed: str) -> bool:
    one, other = words(served), words(typed)
    return one <= other or other <= one


def _check_beside(each: Setting, plain: Setting) -> None:
    """Refuse a drafting step that is surely below the plain step beside it."""
    beside = each.drafts and not plain.drafts and plain.batch == each.batch
    if beside and same_context(each, plain) and each.ratio_to(plain).high < 1.0:
        raise ConfigError(
            f"{each.runs[0].source}: a step of {each.name} takes "
            f"{each.step_us.value / 1e3:.2f} ms, less than the plain step of "
            f"{plain.step_us.value / 1e3:.2f} ms ({plain.runs[0].source}); give the "
            "accepted length, or fix rows that are swapped or of another server"
        )


def _incomparable(settings: Sequence[Setting]) -> ConfigError:
    """Why no setting has another beside it: other batches, or other contexts."""
    at = [f" of {each.context:.0f} tokens" if each.context else "" for each in settings]
    same = len({each.batch for each in settings}) < len(settings)
    ran = ", ".join(
        each.name + own * same for each, own in zip(settings, at, strict=True)
    )
    what = "batch and context (llama-bench: -d TOKENS)" if same else "batch"
    return ConfigError(
        f"no batch has two settings to compare ({ran}); run plain decoding and one K "
        f"at the same {what}"
    )


def _two_texts(each: Setting) -> str:
    """Which two files accept as of two texts and state one; "" if none do."""
    for text in {run.text for run in each.runs}:
        lengths = dict[str, list[float]]()
        for run in each.runs:
            if run.text == text and (length := run.accept_length):
                lengths.setdefault(_file(run), []).append(length)
        means = sorted((sum(n) / len(n), file) for file, n in lengths.items())
        if means and means[-1][0] > UNLIKE * means[0][0]:
            (least, poor), (most, rich) = means[0], means[-1]
            return (
                f"{rich} and {poor} are of two texts: with {each.name} they commit "
                f"{most:.2f} and {least:.2f} tokens a step; name the text of each file "
                f"as FILE=K:TEXT, such as {rich}={each.drafts}:code"
            )
    return ""


def _file(run: Run) -> str:
    return run.source.partition(", ")[0]


def _key(runs: Sequence[Run], model: str, gpu: str) -> Key:
    def stated(*names: str) -> str:
        facts = (run.deployment.stated.get(name) for name in names for run in runs)
        return next((str(fact) for fact in facts if fact), NOT_STATED)

    def count(name: str) -> int:
        return int(number) if (number := stated(name)).isdecimal() else 1

    return Key(
        gpu=gpu,
        model=model,
        dtype=stated("quantization", "dtype"),
        tp=count("tp"),
        ep=count("ep_size"),
        engine=stated("engine"),
        engine_version=stated("version"),
        attention_backend=stated("attention_backend"),
        moe_backend=stated("moe_runner_backend"),
        graph_mode=SERVED,
    )
