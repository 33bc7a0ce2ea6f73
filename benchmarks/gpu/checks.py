"""What must hold on a GPU before any of its numbers is believed.

Each check is a function of the device that returns what it saw, and raises `Wrong` if that is not
what must be. All run on the CPU too (tests/test_gpu_campaign.py), where they show that they can
fail: there is little time on a machine that is borrowed.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddl_core import checkpoint
from ddl_core.config import RunSpec
from ddl_core.device import configure
from ddl_core.errors import DDLError, NotInstalledError
from ddl_core.loaders.synthetic import Synthetic
from ddl_core.loop import EpochLoop, EpochResult, ignore
from ddl_core.optim import make_optimizer
from ddl_core.registry import resolve
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single
from ddl_core.timing import Spent
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import plan_run
from ddl_tools.rank.energy import Meter
from ddl_tools.rank.pytorch import identity
from ddl_tools.records.paths import Tree
from ddl_tools.records.progress import Standing
from ddl_tools.records.run import read_epochs

STEPS = 4
STOPPED_EPOCHS = {"cpu": 12, "cuda": 100}  # some seconds, so that there is time to interrupt
SAME = 1e-3  # |a - b| / |b| of weights after four fp32 steps on two kinds of processor
PLANTED_S = 0.02
# Of the clock's check: on a GPU a step must be long against the launches of its kernels, or the
# device waits for the host, and part of what is added is hidden in that.
OF_DEVICE = {"model": "resnet18", "image_size": 128, "local_batch_size": 256}
OF_DEVICE |= {"train_images": 256 * 10}
OF_HOST = {"local_batch_size": 2, "train_images": 2 * 10}
LOAD_S = 5.0
POWER = (0.8, 1.25)  # energy over power x time: the two are read at different moments


class Wrong(DDLError):
    """A check found what must not be."""


class Skipped(DDLError):
    """A check has nothing to look at here."""


def spec_of(device: str, **fields: Any) -> RunSpec:
    """Return a small run of `STEPS` steps an epoch."""
    small = {"loader": "synthetic", "model": "resnet8", "classes": 10, "image_size": 32}
    small |= {"local_batch_size": 16, "train_images": 16 * STEPS, "epochs": 2}
    small |= {"warmup_epochs": 0, "eval_every": 0, "checkpoint_every": 0}
    return RunSpec.parse({**small, "device": device, **fields})


class Batches:
    """Synthetic batches, each after a pause.

    Made on the CPU they are the same on every device, and wait for a copy.
    """

    fingerprint = None
    corrupt_images = 0
    own_order = False
    seen = None

    def __init__(
        self, spec: RunSpec, device: torch.device, pause: Callable[[], None], made_on: torch.device
    ) -> None:
        self._made = Synthetic(spec, None, "train", 0, 1, made_on)
        self._device, self._pause = device, pause
        self.images, self.classes = self._made.images, self._made.classes

    def __len__(self) -> int:
        return len(self._made)

    def set_epoch(self, epoch: int) -> None:
        """See `Loader`."""
        self._made.set_epoch(epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self._made:
            self._pause()
            yield images.to(self._device), labels.to(self._device)


class Training:
    """One network with everything it needs; `epoch` trains it.

    The batches of `on_device` cost nothing; the others are the same on every device.
    """

    def __init__(
        self,
        spec: RunSpec,
        group: type[Single] = Single,
        pause: Callable[[], None] = lambda: None,
        on_device: bool = False,
    ) -> None:
        configure(spec)
        self.group = group(spec)
        torch.manual_seed(0)
        network = resolve("model", spec.model)(spec.classes).to(self.group.device)
        self.trainee = TrainState(spec, self.group, network, make_optimizer(spec, network))
        made_on = self.group.device if on_device else torch.device("cpu")
        self._loader = Batches(spec, self.group.device, pause, made_on)

    def epoch(self, number: int, on_step: Callable[[int, int], None] | None = None) -> EpochResult:
        """Train one epoch."""
        return EpochLoop(self.trainee).train(self._loader, number, on_step or ignore)

    @property
    def weights(self) -> Tensor:
        """All parameters as one vector of float64, on the CPU."""
        parts = [one.detach().double().cpu().flatten() for one in self.trainee.network.parameters()]
        return torch.cat(parts)


def apart(got: Tensor, want: Tensor) -> float:
    """Return |got - want| / |want|."""
    return float((got - want).norm() / want.norm())


def same_as_the_cpu(device: str) -> str:
    """Hold weights after four fp32 steps against the CPU's."""
    here, cpu, faster = (
        Training(spec_of(where, base_lr=rate))
        for where, rate in ((device, 0.025), ("cpu", 0.025), ("cpu", 0.05))
    )
    for training in (here, cpu, faster):
        training.epoch(0)
    distance, planted = apart(here.weights, cpu.weights), apart(faster.weights, cpu.weights)
    text = f"{distance:.1e} apart (allowed {SAME:.0e}; with twice the rate {planted:.1e})"
    if not distance <= SAME < planted:
        raise Wrong(text)
    return text


def resumed_as_undisturbed(device: str) -> str:
    """Hold a run that stopped after an epoch and went on against one that did not."""
    spec = spec_of(device)
    whole, first, second = (Training(spec) for _ in range(3))
    whole.epoch(0)
    whole.epoch(1)
    first.epoch(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        checkpoint.save(path, first.trainee, 1)
        done = checkpoint.load(path, second.trainee)
    second.epoch(done)
    distance = apart(second.weights, whole.weights)
    text = f"{distance:.1e} apart (allowed {SAME:.0e})" if distance else "equal to the last bit"
    if done != 1 or not distance <= SAME:
        raise Wrong(text)
    return text


def overflow_is_skipped(device: str) -> str:
    """With fp16, a step whose gradients overflow changes no weight and halves the scale."""
    training = Training(spec_of(device, precision="fp16"))
    inner, calls, seen, scales = training.trainee.criterion, [0], [training.weights], []

    class Planted(nn.Module):
        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            calls[0] += 1
            loss: Tensor = inner(logits, labels)
            return loss * math.inf if calls[0] == 2 else loss

    def note(_done: int, _steps: int) -> None:
        seen.append(training.weights)
        scales.append(training.trainee.scaler.get_scale())

    training.trainee.criterion = Planted()
    training.epoch(0, note)
    changed = [not torch.equal(one, other) for one, other in pairwise(seen)]
    text = f"weights changed in steps {changed}, scale {scales}"
    if changed != [True, False, True, True] or scales[1] != scales[0] / 2:
        raise Wrong(text)
    return text


def clock_finds_planted_time(device: str) -> str:
    """Time that is added to one part of a step is found there, within 5 %."""
    spec = spec_of(device, **(OF_DEVICE if device == "cuda" else OF_HOST))
    sleep = sleeper(device)
    off: dict[str, bool] = dict.fromkeys(("data", "compute", "communication", "update"), False)

    def planted(part: str) -> None:
        if off[part]:
            sleep()

    class Group(Single):
        def backward(self, loss: Tensor) -> None:
            super().backward(loss)
            planted("communication")

        def optimizer_step(self, scaler: torch.amp.GradScaler) -> None:
            planted("update")
            super().optimizer_step(scaler)

    # A device that waits for batches of the host is idle, and part of what is added hides in that.
    training = Training(spec, Group, lambda: planted("data"), on_device=True)
    training.trainee.network.register_forward_pre_hook(lambda _network, _inputs: planted("compute"))
    training.epoch(0)  # kernels are chosen
    without = _parts(training.epoch(0))
    found = {}
    for part in off:
        off[part] = True
        found[part] = _parts(training.epoch(0))[part] - without[part]
        off[part] = False
    text = ", ".join(f"{part} {1000 * value:.2f}" for part, value in found.items())
    text = f"of {1000 * PLANTED_S:.0f} ms a step, ms found: {text}"
    # On the CPU it is the machine that varies; there the check shows that it looks at the parts.
    allowed = PLANTED_S * (0.05 if device == "cuda" else 0.5)
    if any(abs(value - PLANTED_S) > allowed for value in found.values()):
        raise Wrong(text)
    return text


def _parts(outcome: EpochResult) -> dict[str, float]:
    """Return the seconds of a step by what they were spent on."""
    spent: Spent | None = outcome.timing.spent
    assert spent is not None
    return {
        "data": (spent.start_s + spent.data_s) / outcome.steps,
        "compute": spent.compute_s / outcome.steps,
        "communication": (spent.transfer_s + spent.waiting_s) / outcome.steps,
        "update": spent.update_s / outcome.steps,
    }


def sleeper(device: str) -> Callable[[], None]:
    """Return what keeps the device, and not the host, busy for `PLANTED_S`."""
    if device != "cuda":
        return lambda: time.sleep(PLANTED_S)
    cycles = 10_000_000
    torch.cuda._sleep(cycles)  # clocks rise
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    torch.cuda._sleep(cycles)
    after.record()
    torch.cuda.synchronize()
    wanted = int(cycles * PLANTED_S / (before.elapsed_time(after) / 1000))
    return lambda: torch.cuda._sleep(wanted)


def nothing_waits_for_the_device(device: str) -> str:
    """No call inside an epoch's steps makes the host wait for the device."""
    if device != "cuda":
        raise Skipped("torch can tell on a GPU only")
    spec = spec_of(device, train_images=16 * 10)
    training = Training(spec, on_device=True)
    training.epoch(0)

    def watch(done: int, steps: int) -> None:
        torch.cuda.set_sync_debug_mode("error" if done + 1 < steps else "default")

    try:
        training.epoch(0, watch)
    except RuntimeError as error:
        raise Wrong(str(error).splitlines()[0]) from error
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return f"{spec.train_images // spec.local_batch_size - 2} steps without one"


def energy_is_power_times_time(device: str) -> str:
    """Hold the counter of joules against the power that the driver reports meanwhile."""
    group = Single(spec_of(device))
    gpu = identity(group.device)
    with Meter(group, gpu) as meter:
        if meter.method is None or gpu is None:
            raise Skipped(meter.missing or "no GPU, so no power to compare with")
        meter.start()
        watts, took = _load(group.device, gpu)
        joules = meter.stop()
    if joules is None:
        raise Wrong("the counter could not be read")
    ratio = joules / (watts * took)
    text = f"{joules:.0f} J by {meter.method}, {watts:.0f} W x {took:.1f} s: ratio {ratio:.2f}"
    if not POWER[0] <= ratio <= POWER[1]:
        raise Wrong(text)
    return text


def _load(device: torch.device, gpu: str) -> tuple[float, float]:
    """Keep a GPU busy; return its mean power in watts and the seconds."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{gpu.removeprefix('GPU-')}")
    square = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    watts, started = [], time.monotonic()
    while time.monotonic() - started < LOAD_S:
        for _ in range(20):
            torch.mm(square, square)
        torch.cuda.synchronize(device)
        watts.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    return sum(watts) / len(watts), time.monotonic() - started


@contextmanager
def planned(spec: RunSpec) -> Iterator[Path]:
    """Plan a run in a folder that is gone afterwards; yield the run's own folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield plan_run(spec, "gpu_checks", Tree(Path(folder)))


def stopped_run_goes_on(device: str) -> str:
    """Interrupt a run of a rank process after its first epoch, and complete it by a second start.

    On the CPU the weights must be those of an undisturbed run. On a GPU, kernels that add in random
    order drive the weights of so many steps apart.
    """
    spec = spec_of(device, epochs=STOPPED_EPOCHS[device], checkpoint_every=1)

    def stop(progress: Standing) -> None:
        if progress["epoch"] > 0:
            raise KeyboardInterrupt

    with planned(spec) as run_dir:
        with suppress(KeyboardInterrupt):
            run_ranks(run_dir, on_progress=stop)
            raise Wrong("the run ended before it could be interrupted")
        stopped = len(read_epochs(run_dir))
        record = run_ranks(run_dir)
        epochs = [row.epoch for row in read_epochs(run_dir) if row.phase == "train"]
    text = f"{stopped} epochs, then up to {len(epochs)} in {len(record.attempts)} starts"
    if epochs != list(range(spec.epochs)) or len(record.attempts) != 2:
        raise Wrong(text)
    if device == "cpu":
        with planned(spec) as run_dir:
            whole = run_ranks(run_dir)
        if record.weights_sha256 != whole.weights_sha256:
            raise Wrong(f"{text}; other weights than those of an undisturbed run")
    return text


def strategies_train_as_one_process(device: str) -> str:
    """Hold the loss of ranks of each strategy against one process that accumulates as often.

    With one GPU there is one rank. On a GPU even the weights of one rank are not the same to the
    last bit: kernels add in random order.
    """
    ranks = 2 if device == "cpu" else min(2, torch.cuda.device_count())
    rates = {"base_lr": 0.25, "epochs": 4}
    want = _loss(spec_of(device, accumulation=ranks, **rates))
    faster = _loss(spec_of(device, accumulation=ranks, **{**rates, "base_lr": 0.5}))
    found = {}
    for strategy in ("ddp", "horovod", "deepspeed", "fsdp"):
        try:
            loss = _loss(spec_of(device, strategy=strategy, gpus_per_node=ranks, **rates))
        except NotInstalledError:
            continue
        found[strategy] = abs(loss / want - 1)
    planted = abs(faster / want - 1)
    text = ", ".join(f"{strategy} {value:.1e}" for strategy, value in found.items())
    text += f" apart (allowed {SAME:.0e}; with twice the rate {planted:.1e})"
    if not max(found.values()) <= SAME < planted:
        raise Wrong(text)
    return text


def _loss(spec: RunSpec) -> float:
    """Return the loss of the last epoch of a run in processes of its own."""
    with planned(spec) as run_dir:
        run_ranks(run_dir)
        rows = [row for row in read_epochs(run_dir) if row.phase == "train"]
    loss = rows[-1].loss
    assert loss is not None
    return loss


CHECKS: tuple[Callable[[str], str], ...] = (
    same_as_the_cpu,
    resumed_as_undisturbed,
    overflow_is_skipped,
    clock_finds_planted_time,
    nothing_waits_for_the_device,
    stopped_run_goes_on,
    strategies_train_as_one_process,
    energy_is_power_times_time,
)


def outcome_of(check: Callable[[str], str], device: str) -> tuple[str, str]:
    """Return ``"ok"``, ``"skipped"`` or ``"WRONG"``, and what a check saw."""
    try:
        return "ok", check(device)
    except Skipped as error:
        return "skipped", str(error)
    except Exception as error:  # a crash is a finding, and the other checks go on
        kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
        return "WRONG", f"{kind}{error}"
