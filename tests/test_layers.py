"""What the contracts of import-linter (`make lint`) cannot see: imports at run time."""

import sys

from tests.commands import output

# Imports all modules below a package but those of some beginnings, without the packages `absent`.
# Libraries that are in environments of their own may be absent from this one as well.
IMPORT = """
import pkgutil, importlib, sys
from importlib.metadata import packages_distributions
# Not None in sys.modules: SciPy, which seaborn imports, takes what it finds there as torch.
class Absent:
    absent = {absent}
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in self.absent:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Absent())
package = importlib.import_module('{package}')
for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
    if not module.name.startswith({but!r}) and not module.name.endswith('__main__'):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.split('.')[0] not in {elsewhere!r}:
                raise
"""
ELSEWHERE = ("tensorflow", "keras", "jax", "optax", "mxnet", "horovod")
# Of requirements/libraries/common.txt, and what comes with them.
EVERYWHERE = {
    *("ddl_core", "ddl_tools", "numpy", "PIL", "psutil", "yaml", "filelock"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
}


def import_all(package: str, absent: str, but: tuple[str, ...] = ()) -> None:
    code = IMPORT.format(package=package, absent=absent, but=but, elsewhere=ELSEWHERE)
    output(sys.executable, "-c", code)


def test_all_but_ranks_start_without_torch() -> None:
    """Registries import by name at run time, which no reader of import statements notices."""
    ranks = (
        *("ddl_tools.rank.profiler", "ddl_tools.frameworks.initial", "ddl_tools.datasets.bench"),
        *("ddl_tools.doctor.probe.", "ddl_tools.emulation.network", "ddl_tools.rank.pytorch"),
    )
    import_all("ddl_tools", "('torch', 'torchvision')", ranks)


def test_ranks_of_other_libraries_need_only_what_their_environments_have() -> None:
    absent = f"{{*packages_distributions()}} - {EVERYWHERE!r}"
    import_all("ddl_tools.frameworks", absent, ("ddl_tools.frameworks.initial",))  # torch's part
