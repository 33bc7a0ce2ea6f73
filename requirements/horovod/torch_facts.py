"""Print what a build of Horovod has to know of the environment's torch, without importing it.

Five lines, ``none`` for what is not there: the versions of torch, of its CUDA and of its NCCL, then
that NCCL's header and library, which a CUDA build of torch brings along as a wheel.
"""

import runpy
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

found = find_spec("torch")
assert found is not None, "torch is not installed"
cuda = runpy.run_path(str(Path(found.origin or "").with_name("version.py")))["cuda"]
nccl, files = None, {}
if cuda:
    try:
        wheel = distribution(f"nvidia-nccl-cu{cuda.split('.')[0]}")
    except PackageNotFoundError:
        pass
    else:
        nccl = wheel.version
        files = {one.name: wheel.locate_file(one) for one in wheel.files or []}
facts = version("torch"), cuda, nccl, files.get("nccl.h"), files.get("libnccl.so.2")
sys.stdout.writelines(f"{one or 'none'}\n" for one in facts)
