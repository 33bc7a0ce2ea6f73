"""Emulated nodes: links of a given rate, real frameworks between nodes, nothing left behind."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, NotInstalledError, SpecError
from ddl_core.registry import require
from ddl_tools.emulation.nodes import check_support
from ddl_tools.emulation.validity import sent_bytes
from ddl_tools.launch import preflight
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import plan_run
from ddl_tools.records.paths import results
from ddl_tools.records.run import Emulation, RunRecord, read_epochs
from tests.commands import output, run
from tests.fields import EMULATED
from tests.launch.fixtures import Start
from tests.launch.running import CALLER, error_of, is_training, processes_of, rank_process, wait_for

LINK_MBIT = 25
STEP_MS = 300

SHORT: dict[str, Any] = {
    **EMULATED,
    "nodes": 2,
    "emu_link_mbit": LINK_MBIT,
    "emu_step_ms": STEP_MS,
    "image_size": 8,
    "local_batch_size": 8,
    "train_images": 32,
    "epochs": 3,
    "warmup_epochs": 0,
    "discard_steps": 1,
    "checkpoint_every": 0,
}


def _why_not() -> str:
    try:
        check_support()
    except (LaunchError, NotInstalledError) as error:
        return str(error)
    return ""


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT) and not os.environ.get("CI"), reason=WHY_NOT)


def planned(**fields: Any) -> Path:
    return plan_run(RunSpec(**{**SHORT, **fields}), "emulation", results())


def finished(**fields: Any) -> tuple[RunRecord, Emulation]:
    """Execute a run on two nodes; return its record and what it tells of the emulation."""
    try:
        require("strategy", str(fields.get("strategy", "ddp")))
    except NotInstalledError as error:
        pytest.skip(str(error))
    record = run_ranks(planned(**fields))
    return record, record.emulation


def printed(code: str, *arguments: int) -> Any:
    """Return what code prints that makes nodes: it becomes their switch."""
    return json.loads(output(sys.executable, "-c", code, *arguments))


RATES = """
import sys
from ddl_tools.emulation.link_rates import measured_mbit
from ddl_tools.emulation.nodes import Wiring, build
nodes, link, uplink = map(int, sys.argv[1:])
print(measured_mbit(build(Wiring("ddp", nodes, 1, link, uplink)), link))
"""


@pytest.mark.alone
@pytest.mark.multiprocess
def test_links_carry_what_is_asked_in_both_directions() -> None:
    assert printed(RATES, 3, 20, 0) == pytest.approx([20, 20, 20], rel=0.05)
    assert printed(RATES, 1, 20, 0) == []


TWO_TO_ONE = """
import selectors, socket, sys, threading, time
from ddl_tools.emulation.nodes import Wiring, build
*senders, target = build(Wiring("ddp", 3, 1, int(sys.argv[1]), 0))
with target.entered():
    listening = socket.create_server((target.address, 0))
ready = selectors.DefaultSelector()
for node in senders:
    with node.entered():
        sender = socket.create_connection(listening.getsockname())
    ready.register(listening.accept()[0], selectors.EVENT_READ)
    threading.Thread(target=sender.sendall, args=[bytes(10**8)], daemon=True).start()
def receive(seconds):
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += sum(len(key.fileobj.recv(10**5)) for key, _ in ready.select(0.1))
    return count * 8 / 1e6 / seconds
receive(0.5)
print(receive(1.5))
"""


@pytest.mark.alone
@pytest.mark.multiprocess
def test_two_that_send_to_one_share_its_link() -> None:
    assert 10 < printed(TWO_TO_ONE, 20) < 22


@pytest.mark.alone
@pytest.mark.multiprocess
def test_an_uplink_slows_who_is_at_its_other_end() -> None:
    """Of a ring of four, 1 sends to 2 and 3 to 0: these two cross it."""
    to_0, to_1, to_2, to_3 = printed(RATES, 4, 40, 10)
    assert (to_1, to_3) == pytest.approx((40, 40), rel=0.1)
    assert 0 < to_0 < 10.6
    assert 0 < to_2 < 10.6


@pytest.mark.alone
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "ddp", "ddp_bucket_mb": 0.390625},
        {"strategy": "horovod", "horovod_cycle_ms": 20},
        pytest.param({"strategy": "deepspeed"}, marks=pytest.mark.extended),
        pytest.param(
            {"strategy": "deepspeed", "deepspeed_zero_stage": 1}, marks=pytest.mark.extended
        ),
    ],
    ids=["ddp", "horovod", "deepspeed0", "deepspeed1"],
)
def test_real_frameworks_send_real_bytes_between_nodes(fields: dict[str, Any]) -> None:
    record, facts = finished(**fields)
    theory = sent_bytes(record.spec, facts)
    assert (facts.sent_bytes_least, facts.sent_bytes_most) == pytest.approx((theory,) * 2, rel=0.12)
    assert facts.link_mbit_least == pytest.approx(LINK_MBIT, rel=0.05)
    assert facts.steps == 4
    # What backward does not hide is at least the last bucket, a sixth of the gradients.
    wire_s = theory * 8 / LINK_MBIT / 1e6
    alone = record.spec.strategy == "deepspeed"  # after backward
    for row in read_epochs(results().study("emulation") / record.run_id):
        if not row.cold:
            exposed_s = row.step_s_median - STEP_MS / 1e3
            assert wire_s * (0.95 if alone else 0.05) < exposed_s < wire_s + 0.5
    # Gradients differ between ranks, so the mean over both shows in the weights, to the last bit.
    assert record.weights_sha256 == _weights_of_the_mean(record)


def _weights_of_the_mean(record: RunRecord) -> str:
    """Return the hash of the weights after steps with the mean of both ranks' gradients."""
    import torch

    from ddl_core.checkpoint import weights_sha256
    from ddl_core.models import drawn
    from ddl_core.optim import make_optimizer, set_learning_rate
    from ddl_core.schedules import learning_rate
    from ddl_tools.emulation.compute import of_this_rank
    from ddl_tools.emulation.network import GRADIENT

    spec = record.spec
    of_this_rank.cache_clear()
    network = drawn(spec)
    optimizer = make_optimizer(spec, network)
    images = spec.train_images or 0
    for step in range(spec.epochs * images // spec.global_batch_size):
        set_learning_rate(optimizer, learning_rate(spec, step * spec.global_batch_size, images))
        for one in network.parameters():
            one.grad = torch.full_like(one, GRADIENT * 1.5)
        optimizer.step()
    return weights_sha256(network)


@pytest.mark.multiprocess
def test_ranks_of_one_node_do_not_use_its_link() -> None:
    _, facts = finished(nodes=1, gpus_per_node=2, emu_step_ms=100)
    assert facts.sent_bytes_most < 0.01 * facts.gradient_bytes
    assert facts.link_mbit_least is None


def _networks() -> set[str]:
    """Return the network namespaces of all processes of this machine."""
    found = set()
    for process in psutil.process_iter():
        try:
            found.add(str(Path(f"/proc/{process.pid}/ns/net").readlink()))
        except OSError:
            continue
    return found


@pytest.mark.alone
@pytest.mark.multiprocess
def test_a_killed_rank_ends_the_run_and_leaves_nothing(start: Start) -> None:
    before = _networks()
    run_dir = planned(epochs=1000)
    caller = start("-c", CALLER, str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    assert len(_networks() - before) == 3  # two nodes and their switch
    rank_process(run_dir, 1).kill()
    _, errors = caller.communicate(timeout=60)
    error = error_of(run_dir)
    assert (error.kind, error.rank) == ("Killed", 1), errors
    assert processes_of(run_dir) == []
    assert _networks() <= before


FORBIDDEN = 'echo 0 >/proc/sys/user/max_net_namespaces && exec "$@"'


def test_a_system_without_namespaces_is_told_what_is_needed() -> None:
    code = "from ddl_tools.emulation.nodes import check_support; check_support()"
    without = ("unshare", "--user", "--map-root-user", "sh", "-c", FORBIDDEN, "sh")
    done = run(*without, sys.executable, "-c", code)
    if "unshare" in done.stderr.partition("\n")[0]:
        pytest.skip(done.stderr)
    assert "LaunchError: this machine cannot emulate a cluster: cannot make a nam" in done.stderr
    assert "it needs namespaces of its own" in done.stderr


def test_a_job_of_one_machine_may_make_any_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    monkeypatch.setenv("DDL_SRUN", "srun")
    preflight.check_run(RunSpec(**SHORT))
    with pytest.raises(SpecError, match="nodes = 2, but this SLURM job has 1"):
        preflight.check_run(RunSpec(strategy="ddp", nodes=2))
