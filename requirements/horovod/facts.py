"""Print what a build of Horovod has to know of torch, or of another library, without importing it.

Five lines, ``none`` for what is not there: the versions of the library, its CUDA and its NCCL, then
that NCCL's header and library, which a CUDA build of torch brings along as a wheel. Nothing where
the library is not installed. Of others than torch only builds for the CPU are known.
"""

import runpy
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = {"torch": "torch", "tensorflow": "tensorflow-cpu", "mxnet": "mxnet"}
(library,) = sys.argv[1:]
try:
    found = version(PACKAGES[library])
except PackageNotFoundError:
    sys.exit()
cuda, nccl, files = None, None, {}
if library == "torch":
    place = find_spec("torch")
    assert place is not None
    cuda = runpy.run_path(str(Path(place.origin or "").with_name("version.py")))["cuda"]
if cuda:
    try:
        wheel = distribution(f"nvidia-nccl-cu{cuda.split('.')[0]}")
    except PackageNotFoundError:
        pass
    else:
        nccl = wheel.version
        files = {one.name: wheel.locate_file(one) for one in wheel.files or []}
facts = found, cuda, nccl, files.get("nccl.h"), files.get("libnccl.so.2")
sys.stdout.writelines(f"{one or 'none'}\n" for one in facts)
