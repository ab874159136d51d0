from rich.console import Console

from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.report.console import Rows, print_rows, wrapped
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, Source
from evict_profile.sources.pairs import GPUS


def show_offers(console: Console, source: Source, as_json: bool) -> None:
    newest = {
        (gpu, engine): version
        for gpu in GPUS
        for engine, version in source.engines(gpu, "moe")
    }
    cells = [(*where, version) for where, version in newest.items()]
    rows = Rows(("GPU", "engine", "version"), cells)
    if as_json:
        say(console, json_of(rows.records))
        return
    print_rows(console, rows)
    say(console, wrapped(f"rows of {source.name} ({LICENCE}), {ATTRIBUTION}"))
