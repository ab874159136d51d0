from evict_profile.config import load_model as load_model
from evict_profile.config import load_sweep as load_sweep
from evict_profile.fit.export import export_table as export_table
from evict_profile.fit.fitted import fit_run as fit_run
from evict_profile.report.advice import advise as advise
from evict_profile.runtime import Truncator as Truncator
from evict_profile.sweep.engine import run_sweep as run_sweep
from evict_profile.sweep.store import Store as Store
from evict_profile.table import CostTable as CostTable

__version__: str
HOME: dict[str, str]
