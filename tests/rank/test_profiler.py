"""Profiled runs with real ranks: shares that sum to one, and causes found as they were planted."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddl_core.config import RunSpec
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.rank.kineto import Event, read_trace, timeline
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.profiling import ProfileRecord, read_profile
from ddl_tools.records.run import EpochRecord, RunRecord, read_epochs, write_record
from tests import planted
from tests.rank.profiled_worker import SLEEP_S, STEPS, WATCHED

pytestmark = [pytest.mark.alone, pytest.mark.multiprocess, pytest.mark.slow]

RUN: dict[str, Any] = {
    "loader": "synthetic",
    "device": "cpu",
    "image_size": 32,
    "classes": 10,
    "eval_images": 4,
    "local_batch_size": 4,
    "epochs": 2,
    "warmup_epochs": 0,
    "discard_steps": 0,
    "loader_workers": 0,
    "checkpoint_every": 0,
    "profile_steps": len(WATCHED),
}
STRATEGIES = {"single": 1, "ddp": 2, "horovod": 2, "deepspeed": 2}
CONVOLUTIONS = 7  # of the network; its gradients fill several of the small buckets
SMALL_BUCKETS = {"ddp": {"ddp_bucket_mb": 0.05}}


@dataclass
class Done:
    directory: Path
    profile: ProfileRecord

    @property
    def events(self) -> list[list[Event]]:
        return [read_trace(RunFiles(self.directory).trace(one.rank)) for one in self.profile.ranks]

    def share(self, rank: int, name: str) -> float:
        return getattr(self.profile.ranks[rank].shares, name)

    @property
    def epoch(self) -> EpochRecord:
        return [row for row in read_epochs(self.directory) if row.phase == "train"][-1]

    def spent(self, name: str) -> float:
        """Return the share of the watched epoch that its marks say was spent so, no profiler."""
        return getattr(self.epoch.spent, f"{name}_s") / self.epoch.wall_s

    def of_epoch(self, seconds: float) -> float:
        return seconds / self.epoch.wall_s

    def account(self, name: str) -> np.ndarray:
        """Return the seconds that the ranks noted themselves, (ranks, watched steps)."""
        ranks = range(len(self.profile.ranks))
        noted = [json.loads((self.directory / f"account_{r}.json").read_text()) for r in ranks]
        return np.array([one[name] for one in noted if name in one])

    @property
    def windows(self) -> np.ndarray:
        return np.array([one.window_s for one in self.profile.ranks])


@pytest.fixture(scope="module", autouse=True)
def _names() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        planted.teach(patch, "tests.rank.profiled_worker")
        patch.setattr("ddl_tools.limits.cores", lambda: 8.0)
        yield


def planned(directory: Path, **fields: Any) -> Path:
    images = STEPS * RUN["local_batch_size"] * fields.get("gpus_per_node", 1)
    spec = RunSpec(**{**RUN, "train_images": images, **fields})
    write_record(directory, RunRecord.plan("test", spec))
    return directory


def run(directory: Path, **fields: Any) -> Done:
    planned(directory, **fields)
    run_ranks(directory)
    return Done(directory, read_profile(directory))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Done]:
    """The same work under every strategy that is installed; in CI that has to be all of them."""
    there = [name for name in STRATEGIES if name in ("single", "ddp") or find_spec(name)]
    if os.environ.get("CI"):
        assert there == list(STRATEGIES)
    return {
        name: run(
            tmp_path_factory.mktemp(name),
            strategy=name,
            gpus_per_node=STRATEGIES[name],
            model="resnet8",
            eval_every=0,
            **SMALL_BUCKETS.get(name, {}),
        )
        for name in there
    }


def test_the_shares_of_each_rank_sum_to_one(runs):
    for name, done in runs.items():
        assert [one.rank for one in done.profile.ranks] == list(range(STRATEGIES[name]))
        for one in done.profile.ranks:
            shares = one.shares.model_dump()
            assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
            assert all(0 <= value <= 1 for value in shares.values())
            exposed = (one.shares.transfer + one.shares.waiting) * one.window_s
            assert sum(one.exposed_s) == pytest.approx(exposed)
            assert one.kernels is None
            assert one.shares.copies == 0


def test_the_windows_hold_the_same_work(runs):
    """Counted, not timed: the machine may be busy."""
    for done in runs.values():
        for events in done.events:
            line = timeline(events, len(WATCHED), on_gpu=False)
            starts = [one.start for one in events if one.name == "aten::convolution_backward"]
            per_step = np.histogram(starts, line.steps)[0]
            assert per_step.tolist() == [CONVOLUTIONS] * len(WATCHED)


def test_only_ranks_that_are_several_communicate(runs):
    """Alone there is nothing but the time between two marks, which a busy machine stretches."""
    for name, done in runs.items():
        if name == "single":
            seen = {one.name for events in done.events for one in events}
            assert not [one for one in seen if one.startswith(("gloo:", "c10d::"))]
        else:
            exposed = [sum(one.exposed_s) for one in done.profile.ranks]
            assert min(exposed) > 0


def test_overlap_is_told_where_it_is_seen_and_missing_where_it_is_not(runs):
    for name, done in runs.items():
        overlaps = [one.overlapped for one in done.profile.ranks]
        if name == "horovod":
            assert overlaps == [None, None]
            assert "unknown" in done.profile.overlapped_missing
            continue
        assert done.profile.overlapped_missing is None
        if name == "ddp":  # the next bucket is filled while one travels
            assert min(overlaps) > 0
        if name == "single":
            assert overlaps == [0]


def test_the_watched_epoch_counts_for_no_throughput(runs):
    for done in runs.values():
        assert done.profile.epoch == 1
        assert [row.cold for row in read_epochs(done.directory)] == [True, True]


def assert_slept(done: Done) -> None:
    """Check that the plan was carried out: as many sleeps as watched steps, none too short."""
    slept = done.account("slept")
    assert slept.shape[1] == len(WATCHED)
    assert slept.min() >= SLEEP_S


def test_a_slow_loader_is_waited_for(tmp_path):
    done = run(tmp_path / "run", loader="synthetic_slow", model="tiny")
    assert_slept(done)
    want = done.account("slept").sum() / done.windows[0]
    assert done.share(0, "data") == pytest.approx(want, abs=0.02)
    assert done.spent("data") == pytest.approx(done.of_epoch(done.account("slept").sum()), abs=0.02)


def test_a_slow_rank_lets_the_other_wait(tmp_path):
    done = run(tmp_path / "run", strategy="ddp_slow_rank", gpus_per_node=2, model="tiny")
    assert_slept(done)
    exposed = done.account("exposed")
    waited = (exposed - exposed.min(axis=0)).sum(axis=1) / done.windows
    for rank in (0, 1):
        assert done.share(rank, "waiting") == pytest.approx(waited[rank], abs=0.02)
    assert done.share(0, "waiting") > 0.5
    slept = done.account("slept").sum() / done.windows[1]
    assert done.share(1, "idle") > slept - 0.02
    assert done.share(1, "waiting") < 0.2
    waiting = (exposed - exposed.min(axis=0)).sum() / 2
    assert done.spent("waiting") == pytest.approx(done.of_epoch(waiting), abs=0.02)


def test_a_slow_network_shows_as_transfer(tmp_path):
    done = run(tmp_path / "run", strategy="ddp_slow_network", gpus_per_node=2, model="tiny")
    assert_slept(done)
    transfer = done.account("exposed").min(axis=0).sum()
    for rank in (0, 1):
        want = transfer / done.windows[rank]
        assert done.share(rank, "transfer") == pytest.approx(want, abs=0.02)
        assert done.share(rank, "transfer") > 0.5
    assert done.spent("transfer") == pytest.approx(done.of_epoch(transfer), abs=0.02)


def test_without_profile_steps_no_profiler_is_made_or_loaded(tmp_path):
    """The worker of these tests sees to it."""
    directory = planned(tmp_path / "run", model="tiny", profile_steps=0)
    run_ranks(directory)
    assert not RunFiles(directory).profile.exists()
    assert not RunFiles(directory).trace(0).parent.exists()
