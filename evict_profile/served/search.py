"""Finding a served table by the names of its model, GPU and engine."""

from pathlib import Path

from evict_profile.config.load import model_named
from evict_profile.errors import EvictProfileError
from evict_profile.served.table import ServedTable
from evict_profile.table import CostTable, search_path, version_of
from evict_profile.table.document import ForeignDocument


def load_any(path: Path) -> CostTable | ServedTable:
    """A table of either kind, by the schema that it states."""
    try:
        return CostTable.load(path)
    except ForeignDocument:
        return ServedTable.load(path)


def find_served(model: str, gpu: str, engine: str | None) -> ServedTable | None:
    """The newest served table of these names in the first folder that has one."""
    for folder in search_path():
        found = list[ServedTable]()
        for path in sorted(folder.rglob("*-served/*.json")):
            try:
                table = ServedTable.load(path)
            except (ForeignDocument, EvictProfileError):
                continue
            key = table.key
            same_gpu = set(_words(gpu)) <= set(_words(key.gpu))
            same_engine = engine is None or engine.lower() == key.engine.lower()
            if model_named(model, [key.model]) and same_gpu and same_engine:
                found.append(table)
        if found:
            return max(found, key=lambda each: version_of(each.version))
    return None


def _words(gpu: str) -> list[str]:
    return gpu.lower().replace("-", " ").replace("_", " ").split()
