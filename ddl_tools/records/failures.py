"""Classes of failure, what to do about each, and the class of an error of a library or of a job.

Errors of this project carry their class: `DDLError.category`.
"""

import re
import signal

from ddl_core.errors import Category, DDLError

REMEDIES: dict[Category, str] = {
    "out_of_memory": "a smaller local_batch_size (in main memory also fewer loader_workers, or a "
    "higher `ulimit -v`); accumulation keeps the global batch",
    "shared_memory": "/dev/shm is full, through which loader processes hand over batches: use "
    "`--loader-workers 0` (loader_workers in a study), or enlarge it (containers: --shm-size)",
    "processes": "the limit of processes or threads is reached: raise it (`ulimit -u`, pids.max of "
    "the container or job), or use fewer ranks, loader_workers or threads",
    "time_limit": "submit again to go on from the last checkpoint; where no epoch was finished, "
    "ask for more with --time",
    "cancelled": "stopped from outside; start or submit the study again to go on",
    "node_failure": "the machine's fault; submit again to go on from the last checkpoint",
    "killed": "ended by a signal, sender unknown; see logs/ of the run's folder, ask the site, try "
    "again",
    "rendezvous": "the ranks did not meet: check the network interface and the master address of "
    "the site's file, and that no other run uses the port",
    "collective": "the ranks lost one another; look for the first one to fail in logs/, then check "
    "the network interface",
    "stalled": "no rank moved on; the message says where each was; set DDL_STALL_TIMEOUT to more "
    "seconds if such a pause is expected",
    "data": "look at the named file or folder; `ddl data verify` checks all of them",
    "disk": "full, read-only, or a file on it is damaged: free space, or choose another place with "
    "--results DIR",
    "contract": "the run cannot be compared with others; see docs/explanation/fairness.md",
    "settings": "the message names the setting and what is allowed",
    "environment": "a program or package is missing or broken: see the message, then `ddl doctor`",
    "code": "a fault of this project or of a library; error.json and logs/ have the traceback",
}

# A kind that leaves no doubt: errors of this project, and names of classes of others.
_BY_KIND: dict[str, Category] = {
    **{one.__name__: one.category for one in DDLError.__subclasses__() if one.category},
    "Timeout": "stalled",
    "TimeLimit": "time_limit",
    "MemoryError": "out_of_memory",
    "OutOfMemoryError": "out_of_memory",
    "ModuleNotFoundError": "environment",
    "ImportError": "environment",
    "DistStoreError": "rendezvous",
    "DistNetworkError": "rendezvous",
    "HorovodInternalError": "collective",
}

# Messages of libraries and SLURM, the more special first (sources: tests/launch/test_failures.py).
_BY_TEXT: list[tuple[Category, str]] = [
    (
        "shared_memory",
        r"</torch_\d|/dev/shm|shared memory\(shm\)|dataloader's workers are out of shared memory",
    ),
    ("disk", r"no space left on device|disk quota exceeded"),
    (
        "out_of_memory",
        r"out of memory|out of shared memory|oom[-_ ]kill"
        r"|can(?:'|no)t allocate memory|bad_alloc|\bMemoryError\b|_STATUS_ALLOC_FAILED",
    ),
    (
        "processes",
        r"can't start new thread|resource temporarily unavailable|failed to create thread"
        r"|pthread_create\w* failed",
    ),
    ("time_limit", r"due to time limit"),
    ("node_failure", r"uncorrectable ECC|fallen off the bus|due to node failure"),
    ("cancelled", r"\*\*\* JOB \d+ ON \S+ CANCELLED AT"),
    (
        "rendezvous",
        r"clients joined|unable to find address for|no socket interface found"
        r"|trying to connect to|server socket has failed|Rendezvous\w*Error"
        r"|connectFullMesh|wait timeout after \d+ms, keys",
    ),
    (
        "collective",
        r"connection (?:closed|reset) by peer|timed out waiting \d+ms|caused pair closure"
        r"|collective operation timeout|NCCL error|nccl(?:Remote|System|Internal)Error"
        r"|Horovod has been shut down|Collective ops is aborted",
    ),
    ("killed", r"killed by signal: killed"),
    ("environment", r"No module named|cannot open shared object file|command not found"),
]

# Where nothing else is known.
_OTHERWISE: dict[str, Category] = {"Killed": "killed", "NotStarted": "environment"}

# Signals by which a program ends itself, or its mistake does.
OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

# The last state of a job, as squeue, sacct and scontrol name it.
_BY_STATE: dict[str, Category] = {
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
}

# Ended from outside: the run goes on with the next `ddl study run`.
INTERRUPTIONS: tuple[Category, ...] = ("time_limit", "cancelled", "node_failure")


def classify(
    kind: str, text: str = "", *, exit_code: int | None = None, state: str = ""
) -> Category:
    """Return the class of a failure: by the state of the job, the kind, the text, the exit code.

    Parameters
    ----------
    kind
        Name of the exception, or ``Killed``, ``Crashed``, ``NotStarted``, ``Timeout``.
    text
        Its message and the last lines of the log.
    exit_code
        Exit code of the first rank to fail; negative where a signal ended it.
    state
        SLURM's state of a job that has ended; else empty.
    """
    if state in _BY_STATE:
        return _BY_STATE[state]
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    for category, pattern in _BY_TEXT:
        if re.search(pattern, text, re.IGNORECASE):
            return category
    if exit_code is not None and exit_code < 0:
        return "code" if -exit_code in OWN_SIGNALS else "killed"
    return _OTHERWISE.get(kind, "code")


def remedy(category: Category) -> str:
    """Return the class and what to do about it, in one line."""
    return f"{category.replace('_', ' ')}: {REMEDIES[category]}"
