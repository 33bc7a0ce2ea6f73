"""One of two ranks that fail to meet or lose one another: ``meeting.py WHAT RANK PORT``."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

what, rank, port = sys.argv[1:]
place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": "2"}
os.environ.update(place, GLOO_SOCKET_IFNAME="lo")
timeout = timedelta(seconds=5 if what in ("alone", "no master") else 60)
try:
    dist.init_process_group("gloo", timeout=timeout)
    short = dist.new_group(timeout=timedelta(seconds=3)) if what == "silent" else None
    if rank == "1":
        dist.barrier()
        if what == "silent":
            time.sleep(600)
        os.kill(os.getpid(), 9)
    dist.barrier()
    dist.all_reduce(torch.ones(4), group=short)
except Exception as error:
    sys.stdout.write(f"{type(error).__name__}\n{error}\n")
