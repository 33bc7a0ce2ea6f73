"""One question a file: its points, the figure drawn from them alone, sentences and a table.

All are in `QUESTIONS`, in the order of the notebooks that explain them.
"""

from importlib import import_module
from pkgutil import iter_modules

from ddl_tools.analysis.question import REGISTERED

for _file in sorted(file.name for file in iter_modules(__path__)):
    import_module(f"{__name__}.{_file}")

QUESTIONS = dict(sorted(REGISTERED.items(), key=lambda item: item[1].notebook))
