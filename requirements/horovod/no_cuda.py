"""Run code as ``python -c`` does, with a torch that says it was built without CUDA.

after.cmake lets Horovod ask torch through this where its build shall leave CUDA out.
"""

import sys

import torch

torch.version.cuda = None
_, option, code = sys.argv
assert option == "-c"
exec(code)
