"""Stands in for the ranks of a probe of which the last never joins the others."""

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from ddl_core.probe.__main__ import Probe, main

if os.environ["RANK"] == "1":
    faulthandler.register(signal.SIGUSR1)
    Probe(Path(sys.argv[1])).step("thinking")
    time.sleep(1000)
sys.exit(main(sys.argv[1:]))
