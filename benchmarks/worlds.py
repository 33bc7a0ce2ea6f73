"""Worlds in which the fastest configuration is known, for simulated searches.

A world has the true rate (images/s) of every training alone and of every loader alone, and what a
search may try. Both together reach a measured rate where there is one. Otherwise they reach the
smaller of both, divided by a factor that is drawn for each pair and search: measured pairs on two
cores and on an H200 are 0 to 19 % below it. Numbers without a source below are invented.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import Loading, Training, loading_of, training_of
from ddl_core.config import RunSpec
from ddl_tools.recommend.plan import Space

TORCH = "torch"  # the precision of PyTorch's own settings
FACTOR = (1.0, 1.19)  # smaller rate of two parts / rate of both together
HARSH = (0.8, 1.5)
IMAGES = 12_800

Pair = tuple[Training, Loading]


class Times(NamedTuple):
    """Seconds that measuring takes.

    `start_s` is that of a whole configuration without its epochs, drawn between both. `process_s`
    is the start of a process that measures parts. A training is compiled once, and read back later.
    """

    start_s: tuple[float, float]
    part_s: float = 5.0
    process_s: float = 5.0
    compile_s: float = 73.0
    cached_s: float = 15.0


GPU = Times((12.0, 25.0), process_s=15.0)  # 20 to 45 s with epochs
CPU = Times((1.5, 4.5), process_s=3.0)  # 4 to 9 s with epochs


@dataclass(frozen=True)
class World:
    """A space, and the truth about it.

    `trainings` and `loadings` have all rates, also of those that no search can reach. `pairs` are
    measured ones. What is in `failed` runs out of memory: trainings, loaders, pairs of both.
    `cores` are those that the system shows: hardware threads.
    """

    name: str
    space: Space
    times: Times
    cores: int
    trainings: Mapping[Training, float]
    loadings: Mapping[Loading, float]
    pairs: Mapping[Pair, float] = field(default_factory=dict)
    failed: frozenset[Training | Loading | Pair] = frozenset()
    factor: tuple[float, float] = FACTOR
    neighbour: bool = False

    def fails(self, *parts: Training | Loading) -> bool:
        """Say whether a training, a loader, or a training with a loader runs out of memory."""
        return parts in self.failed or any(part in self.failed for part in parts)

    def drawn(self, generator: np.random.Generator) -> dict[Pair, float]:
        """Return the true rates of all pairs that can run, with factors drawn anew.

        The factor is one of a training and a kind of loader, whatever its number of processes.
        """
        kinds = list(dict.fromkeys(one[:2] for one in self.loadings))
        factors = generator.uniform(*self.factor, (len(self.trainings), len(kinds)))
        rates = {}
        for (training, rate), row in zip(self.trainings.items(), factors, strict=True):
            for loading, other in self.loadings.items():
                pair = training, loading
                drawn = min(rate, other) / row[kinds.index(loading[:2])]
                if not self.fails(*pair):
                    rates[pair] = self.pairs.get(pair, float(drawn))
        return rates

    def best(self, rates: Mapping[Pair, float]) -> float:
        """Return the highest of some true rates at the default's global batch."""
        same = self.space.default.global_batch_size
        return max(rate for (one, _), rate in rates.items() if one.ranks * one.batch == same)


Worlds = Callable[[np.random.Generator], World]


def default_of(device: str, ranks: int, batch: int, processes: int, strategy: str) -> RunSpec:
    """Return the configuration that PyTorch has by itself."""
    return RunSpec.parse(
        {
            "strategy": strategy,
            "gpus_per_node": ranks,
            "local_batch_size": batch,
            "loader_workers": processes,
            "device": device,
            "precision": TORCH if device == "cuda" else "fp32",
            "epochs": 4,
            "discard_steps": 1,
            "eval_every": 0,
            "checkpoint_every": 0,
        }
    )


def possible(
    rate: Callable[[Training], float],
    strategies: Iterable[tuple[str, int, int]],
    precisions: Sequence[str],
    compiles: bool = True,
) -> dict[Training, float]:
    """Return the rates of all trainings of some strategies, ranks and batches."""
    found = {}
    compiled = (False, True) if compiles else (False,)
    for (name, ranks, batch), *settings in itertools.product(
        strategies, precisions, (False, True), compiled
    ):
        one = Training(name, ranks, batch, *settings)
        if name != "fsdp" or not (one.channels_last or one.compile):  # `combinations` refuses them
            found[one] = rate(one)
    return found


def processes(
    rates: Mapping[tuple[str, str], tuple[float, float]], count: int
) -> dict[Loading, float]:
    """Return the rates of loaders with some processes, and with twice as many."""
    return {
        Loading(*kind, number): rate
        for kind, both in rates.items()
        for number, rate in zip((count, 2 * count), both, strict=True)
    }


NATIVE, TURBO, DALI_CPU = ("native", "cpu"), ("turbo", "cpu"), ("dali_cpu", "cpu")
DALI_GPU, DALI_CPU_DECODE = ("dali_gpu", "gpu"), ("dali_gpu", "cpu")
ON_CPU = [{"loader": one} for one in ("native", "turbo", "dali_cpu")]
ON_GPU = [*ON_CPU, {"loader": "dali_gpu"}, {"loader": "dali_gpu", "dali_decode": "cpu"}]
HALF = {"precision": "bf16", "channels_last": True}


def h200() -> World:
    """Return one NVIDIA H200: ResNet50, 224 px, batch 256.

    Measured: synthetic bf16 NHWC compiled 6,660; the compiler's gain 1.41 (on an H100); with it
    native, DALI on the CPU, on the GPU, and with the decoder on the CPU; FP32 with turbo 623; DALI
    alone, of 14 threads, here those of 16 processes. Native and turbo alone follow from an H100's.
    Invented: TF32, FP32 NHWC, BF16 NCHW, larger batches, and loaders of half as many processes.
    """
    alone = {("fp32", False): 640, ("fp32", True): 600, (TORCH, False): 1500, (TORCH, True): 1650,
             ("bf16", False): 2600, ("bf16", True): 4720}  # fmt: skip
    compiled = {"fp32": 1.05, TORCH: 1.15, "bf16": 1.41}

    def rate(one: Training) -> float:
        gain = compiled[one.precision] if one.compile else 1.0
        larger = 1.0 + 0.03 * (1 - 256 / one.batch)
        return alone[one.precision, one.channels_last] * gain * larger

    sizes = [("single", 1, batch) for batch in (256, 512, 1024)]
    loadings = processes(
        {
            NATIVE: (1240, 2170),
            TURBO: (2170, 3790),
            DALI_CPU: (2130, 3734),
            DALI_GPU: (14000, 18050),
            DALI_CPU_DECODE: (4090, 7160),
        },
        8,
    )
    fast = Training("single", 1, 256, "bf16", True, True)
    plain = Training("single", 1, 256, "fp32", False, False)
    pairs = {
        (fast, Loading(*NATIVE, 16)): 1908,
        (fast, Loading(*DALI_CPU, 16)): 3441,
        (fast, Loading(*DALI_GPU, 16)): 5576,
        (fast, Loading(*DALI_CPU_DECODE, 16)): 5401,
        (plain, Loading(*TURBO, 8)): 623,
    }
    space = Space(
        default_of("cuda", 1, 256, 8, "single"),
        settings=[HALF],
        loaders=ON_GPU,
        larger=(512, 1024),
        compiles=True,
        images=IMAGES,
    )
    trainings = possible(rate, sizes, ("fp32", TORCH, "bf16"))
    return World("h200", space, GPU, 16, trainings, loadings, pairs)


def two_cores() -> World:
    """Return two CPU cores: ResNet50, 32 px, batch 16 (`figures/laptop`).

    Measured: DDP on synthetic images 85.2, with native 74.1, with DALI 80.7; Horovod and DeepSpeed
    with native 61.7 and 58.4, and alone by DDP's ratio; one process; native and DALI alone.
    FSDP has its ratio to DDP of `figures/sharding`, turbo its ratio to native of
    `figures/laptop_loaders`. Invented: NHWC, one process with two threads, twice the processes.
    """
    alone = {"ddp": 85.2, "horovod": 70.9, "deepspeed": 67.1, "fsdp": 32.0}

    def rate(one: Training) -> float:
        layout = 1.05 if one.channels_last else 1.0
        of_one = 74.2 if one.batch == 16 else 77.0
        return (alone[one.strategy] if one.ranks > 1 else of_one) * layout

    sizes = [*((name, 2, 16) for name in alone), ("single", 1, 16), ("single", 1, 32)]
    plain = {name: Training(name, 2, 16, "fp32", False, False) for name in alone}
    native, dali = Loading(*NATIVE, 2), Loading(*DALI_CPU, 2)
    pairs = {
        (plain["ddp"], native): 74.1,
        (plain["ddp"], dali): 80.7,
        (plain["horovod"], native): 61.7,
        (plain["deepspeed"], native): 58.4,
        (Training("single", 1, 16, "fp32", False, False), Loading(*NATIVE, 1)): 64.5,
    }
    loadings = processes({NATIVE: (778, 820), TURBO: (1160, 1220), DALI_CPU: (1305, 1370)}, 2)
    # One rank of the old search has as many processes as one of two ranks.
    loadings |= processes({NATIVE: (430, 778), TURBO: (640, 1160), DALI_CPU: (720, 1305)}, 1)
    one_rank = {"gpus_per_node": 1, "strategy": "single", "local_batch_size": 32}
    space = Space(
        default_of("cpu", 2, 16, 1, "ddp"),
        settings=[{"channels_last": True}],
        ranks=[one_rank],
        strategies=("horovod", "deepspeed", "fsdp"),
        loaders=ON_CPU,
        images=IMAGES,
    )
    trainings = possible(rate, sizes, ("fp32",), compiles=False)
    return World("two_cores", space, CPU, 2, trainings, loadings, pairs)


def slow_link() -> World:
    """Return four GPUs with 2 GB/s between them, 32 cores: ResNet50, batch 64; all invented.

    A step takes the compute and what its exchange of 102 MB exceeds 70 % of that. DeepSpeed sends
    bf16 and FSDP the weights as well.
    """
    exchange_s = {"ddp": 0.077, "horovod": 0.085, "deepspeed": 0.042, "fsdp": 0.115}
    alone = {("fp32", False): 380, ("fp32", True): 360, (TORCH, False): 800, (TORCH, True): 850,
             ("bf16", False): 1400, ("bf16", True): 2500}  # fmt: skip

    def rate(one: Training) -> float:
        images_s = alone[one.precision, one.channels_last] * (1.3 if one.compile else 1.0)
        compute_s = one.batch / images_s
        step_s = compute_s + max(0.0, exchange_s[one.strategy] - 0.7 * compute_s)
        return one.ranks * one.batch / step_s

    sizes = [(name, 4, 64 * 2**power) for name in exchange_s for power in range(6)]
    loadings = processes(
        {
            NATIVE: (3200, 5200),
            TURBO: (5600, 8800),
            DALI_CPU: (5400, 8500),
            DALI_GPU: (26000, 30000),
            DALI_CPU_DECODE: (9000, 15000),
        },
        32,
    )
    space = Space(
        default_of("cuda", 4, 64, 8, "ddp"),
        settings=[HALF],
        strategies=("horovod", "deepspeed", "fsdp"),
        loaders=ON_GPU,
        larger=tuple(64 * 2**power for power in range(1, 6)),
        compiles=True,
        images=10 * IMAGES,
    )
    trainings = possible(rate, sizes, ("fp32", TORCH, "bf16"))
    return World("slow_link", space, GPU, 32, trainings, loadings)


def neighbour() -> World:
    """Return `two_cores` with another program on the same cores, now and then."""
    return replace(two_cores(), name="neighbour", neighbour=True)


def out_of_memory() -> World:
    """Return `slow_link` with a small memory.

    DeepSpeed and batches from 256 on fail, and so does DALI on the GPU with a batch of 128.
    """
    world = slow_link()
    failed: set[Training | Loading | Pair] = set()
    for training in world.trainings:
        if training.strategy == "deepspeed" or training.batch >= 256:
            failed.add(training)
        elif training.batch >= 128:
            failed |= {(training, one) for one in world.loadings if one.loader == "dali_gpu"}
    return replace(world, name="out_of_memory", failed=frozenset(failed))


def equal() -> World:
    """Return `two_cores` with all configurations equally fast."""
    world = two_cores()
    same = dict.fromkeys(world.trainings, 80.0)
    loads = dict.fromkeys(world.loadings, 800.0)
    return replace(world, name="equal", trainings=same, loadings=loads, pairs={}, factor=(1.0, 1.0))


def random_effects(generator: np.random.Generator) -> World:
    """Return a world at random: effects and interactions of two settings up to a factor of two.

    One training and one loader of ten, and one pair of twenty, fail; the default does not.
    """
    on_gpu = generator.random() < 0.5
    ranks = int(generator.choice([1, 2, 4]))
    batch = int(generator.choice([8, 32, 128]))
    kinds = [NATIVE, TURBO, DALI_CPU] + [DALI_GPU, DALI_CPU_DECODE] * on_gpu
    strategies = ["horovod", "deepspeed", "fsdp"] if ranks > 1 else []
    first = "ddp" if ranks > 1 else "single"
    batches = [batch * 2**power for power in range(4)] if on_gpu else [batch]
    fewer = [one for one in (1, 2) if one < ranks and not on_gpu]

    def effects(names: Iterable[Any], most: float = 2.0) -> dict[Any, float]:
        return {name: float(most ** generator.uniform(-1, 1)) for name in names}

    sizes = [(name, ranks, one) for name in (first, *strategies) for one in batches]
    for one in fewer:
        names_of = ["ddp", *strategies] if one > 1 else ["single"]
        # The old search keeps the batch of a rank.
        sizes += [(name, one, size) for name in names_of for size in (ranks * batch // one, batch)]
    every = possible(lambda _: 1.0, sizes, ("fp32", TORCH, "bf16") if on_gpu else ("fp32",), on_gpu)
    names = sorted({word for one in every for word in _words(one)})
    main = effects(names)
    both = effects(itertools.combinations(names, 2), most=2**0.5)  # twice as fast, or half

    def rate(one: Training) -> float:
        words = sorted(_words(one))
        pairs = itertools.combinations(words, 2)
        return 100.0 * math.prod([main[word] for word in words] + [both[pair] for pair in pairs])

    trainings = {
        one: rate(one._replace(precision=TORCH)) / 2  # FP32 is never faster than TF32
        if on_gpu and one.precision == "fp32"
        else rate(one)
        for one in every
    }
    scale = float(np.median(list(trainings.values())))
    own = max(1, 4 // ranks)  # loader processes of a rank
    counts = sorted({factor * own * one for one in (ranks, *fewer) for factor in (1, 2)})
    loadings: dict[Loading, float] = {}
    for kind in kinds:
        middle, power = scale * 4 ** generator.uniform(-1, 1), generator.uniform(-0.2, 1.0)
        loadings |= {Loading(*kind, one): middle * (one / own / ranks) ** power for one in counts}
    layout = [{"channels_last": True}]
    space = Space(
        default_of("cuda" if on_gpu else "cpu", ranks, batch, own, first),
        settings=[HALF, {"precision": "bf16"}, *layout] if on_gpu else layout,
        ranks=[{"gpus_per_node": one, "strategy": "ddp" if one > 1 else "single",
                "local_batch_size": ranks * batch // one} for one in fewer],
        strategies=strategies,
        loaders=ON_GPU if on_gpu else ON_CPU,
        larger=batches[1:],
        compiles=on_gpu,
        images=IMAGES,
    )  # fmt: skip
    default = training_of(space.default), loading_of(space.default)
    failed: set[Training | Loading | Pair] = {one for one in trainings if generator.random() < 0.1}
    broken = {kind for kind in kinds[1:] if generator.random() < 0.1}
    failed |= {one for one in loadings if one[:2] in broken}
    pairs = itertools.product(trainings, loadings)
    failed |= {pair for pair in pairs if generator.random() < 0.05}
    failed -= {default[0], default}
    times = GPU if on_gpu else CPU
    return World("random_effects", space, times, 8, trainings, loadings, failed=frozenset(failed))


def _words(one: Training) -> set[str]:
    """Return the settings of a training that have effects of their own."""
    words = {one.strategy, f"{one.ranks} ranks", f"batch {one.batch}", one.precision}
    return words | {name for name in ("channels_last", "compile") if getattr(one, name)}


def harsh(world: World) -> World:
    """Return a world whose pairs are up to a quarter above or a third below the smaller rate."""
    return replace(world, name=f"harsh_{world.name}", factor=HARSH, pairs={})


def worlds() -> dict[str, Worlds]:
    """Return worlds by name; each search of `random_effects` has another one."""
    fixed = [h200(), two_cores(), slow_link(), neighbour(), out_of_memory(), equal()]
    fixed += [harsh(fixed[0]), harsh(fixed[1])]
    found: dict[str, Worlds] = {one.name: (lambda _, one=one: one) for one in fixed}
    return found | {"random_effects": random_effects}
