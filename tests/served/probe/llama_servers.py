"""Starts llama-servers of the package `xllamacpp`, each on one thread.

Run as a script with a `Setting` in JSON, it is one such server.
"""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Setting:
    """A server: its model, and how it drafts. `rate` 0 keeps the draft's acceptance."""

    model: str
    draft: str = ""
    n_max: int = 0
    rate: float = 0.0


def params_of(setting):
    """What xllamacpp starts a llama-server with, on one thread."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = setting.model, 1024, 1
    params.warmup = params.fit_params = False
    params.n_gpu_layers = params.verbosity = params.cache_ram_mib = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if setting.n_max:
        kind = xllamacpp.common_speculative_type
        params.speculative.types = [kind.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max = setting.draft, setting.n_max
        draft.n_min, draft.p_min, draft.backend_sampling = 0, 0.0, False
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
        if setting.rate:
            positions = range(1, setting.n_max + 1)
            params.speculative.synth_rates = [setting.rate**i for i in positions]
    return params


def serve(setting):
    """The child: a server that listens, whose address is its first line."""
    import xllamacpp

    params = params_of(setting)
    params.port, params.endpoint_metrics = 0, True
    server = xllamacpp.Server(params)  # It listens as long as somebody holds it.
    print(server.listening_address, flush=True)
    time.sleep(1e6)


@contextmanager
def started(asked):
    """Servers of the settings: their URLs."""
    children, urls = [], []
    try:
        # One after another: two that look for a free port may find the same.
        for setting in asked:
            words = [sys.executable, __file__, json.dumps(asdict(setting))]
            child = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            children.append(child)
            urls.append(child.stdout.readline().strip())
        yield urls
    finally:
        for child in children:
            child.kill()


if __name__ == "__main__":
    serve(Setting(**json.loads(sys.argv[1])))
