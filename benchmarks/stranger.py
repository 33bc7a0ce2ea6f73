"""Test worlds of nine kinds of real machines, by someone who has not seen the search.

Rates of known hardware are orders of magnitude from public benchmarks of ResNet50; all else is
invented. What two parts lose together comes from simple models: exposed communication, decoding
that takes time of a GPU, and cores that a loader shares with a training.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.machine import Loading, Training
from benchmarks.worlds import (
    CPU,
    DALI_CPU,
    DALI_CPU_DECODE,
    DALI_GPU,
    GPU,
    HALF,
    IMAGES,
    NATIVE,
    ON_CPU,
    ON_GPU,
    TORCH,
    TURBO,
    Times,
    World,
    default_of,
    possible,
)
from ddl_tools.recommend.plan import Space

NAMES = ("ddp", "horovod", "deepspeed", "fsdp")
OLD_HALF = {"precision": "fp16", "channels_last": True}  # before Ampere
GRADIENTS_GB = 0.102  # of ResNet50 in FP32
IMAGE_GB = 0.085  # of activations of ResNet50 in FP32, 224 px

Pairs = dict[tuple[Training, Loading], float]
Rate = Callable[[Training], float]
Uniform = tuple[float, float]


class Cost(NamedTuple):
    """What a strategy costs: traffic against DDP, the share of a step that hides it, and more."""

    traffic: float
    overlap: float
    overhead_s: float
    compiled: float  # factor on the rate when compiled
    half: float = 1.0  # factor on the traffic in half precision


class Cores(NamedTuple):
    """Cores of a machine, and its hardware threads."""

    cores: int
    threads: int

    def speedup(self, processes: int) -> float:
        """Return how many times the rate of one core some processes reach."""
        real = min(processes, self.cores)
        second = 0.28 * max(0, min(processes, self.threads) - self.cores)
        over = max(0.0, processes / self.threads - 1)
        lost = 0.97 ** math.log2(max(real, 1)) * (1 - 0.06 * min(over, 3))
        return float((real + second) * lost)


class Card(NamedTuple):
    """A GPU: memory, images/s that DALI decodes there, and the GPU's share that this takes."""

    memory_gb: float
    decode: float
    taken: float
    image_gb: float = IMAGE_GB


class Node(NamedTuple):
    """A machine with GPUs; `batches` are of a rank and `workers` processes of a rank."""

    card: Card
    cores: Cores
    ranks: int
    batches: tuple[int, ...]
    workers: int
    half: str
    times: Times = GPU


def stranger(generator: np.random.Generator) -> World:
    """Return a machine of a kind drawn from nine."""
    return KINDS[int(generator.integers(len(KINDS)))](generator)


def desktop(generator: np.random.Generator) -> World:
    """Return a desktop: RTX 3060 to 3080 with 8 to 12 GB, six cores, sometimes a slow disk.

    Known: TF32 200 to 450 images/s, AMP about 1.8 times; no JPEG engine, so DALI decodes with CUDA
    cores. Invented: the disk, which has large photos and then limits all loaders alike.
    """
    of = generator.uniform
    base, layout = of(200, 450), of(0.93, 1.06)
    alone = {
        ("fp32", False): of(0.8, 0.92) * base,
        ("fp32", True): of(0.7, 0.8) * base,
        (TORCH, False): base,
        (TORCH, True): layout * base,
        ("bf16", False): of(1.2, 1.4) * base,
        ("bf16", True): of(1.65, 1.95) * base,
    }
    gains = {"fp32": of(1.0, 1.04), TORCH: of(1.05, 1.12), "bf16": of(1.08, 1.25)}
    card = Card(float(generator.choice([7.5, 9.5, 11.5])), of(1500, 2600), of(0.6, 0.9))
    node = Node(card, Cores(6, 12), 1, (64, 128, 256), 6, "bf16", Times((14.0, 30.0), compile_s=60))
    disk = of(260, 520) if generator.random() < 0.5 else math.inf
    return _gpus(generator, node, _table(alone, gains, 64), _native(generator, 130, 190), disk)


def four_cards(generator: np.random.Generator) -> World:
    """Return a workstation: four RTX 4090 without peer-to-peer, 24 to 32 cores.

    Known: TF32 about 700 and AMP 1,300 images/s each; all-reduce through the host 4 to 8 GB/s, so
    small batches in BF16 wait for the link. DeepSpeed may send BF16, and then waits less.
    """
    of = generator.uniform
    base = of(620, 760)
    alone = {
        ("fp32", False): of(0.82, 0.95) * base,
        ("fp32", True): of(0.75, 0.82) * base,
        (TORCH, False): base,
        (TORCH, True): of(0.95, 1.1) * base,
        ("bf16", False): of(1.2, 1.45) * base,
        ("bf16", True): of(1.75, 2.1) * base,
    }
    gains = {"fp32": of(1.0, 1.05), TORCH: of(1.06, 1.12), "bf16": of(1.1, 1.3)}
    cores = int(generator.choice([24, 32]))
    node = Node(
        Card(24, of(3000, 4500), of(0.5, 0.8)),
        Cores(cores, 2 * cores),
        4,
        (64, 128, 256),
        int(generator.choice([6, 8])),
        "bf16",
    )
    per_core = _native(generator, 130, 180)
    return _gpus(generator, node, _table(alone, gains, 64), per_core, link_gbs=of(4, 8))


def voltas(generator: np.random.Generator) -> World:
    """Return two V100 (16 GB) over PCIe in an old server with two Xeons of 8 to 10 cores.

    Known: FP32 350 to 380, FP16 NHWC 700 to 800; FP32 is slower in NHWC; no TF32, no BF16. No JPEG
    engine. Invented: the compiler's small gains, links through the host.
    """
    of = generator.uniform
    base, slower = of(340, 385), of(0.78, 0.92)
    alone = _before_ampere(base, slower, of(1.5, 1.75), of(1.95, 2.2))
    plain = of(0.98, 1.06)
    gains = {"fp32": plain, TORCH: plain, "fp16": of(1.02, 1.2)}
    cores = int(generator.choice([16, 20]))
    node = Node(
        Card(16, of(1900, 2700), of(0.6, 0.9)),
        Cores(cores, 2 * cores),
        2,
        (128, 256),
        int(generator.choice([4, 8])),
        "fp16",
        Times((18.0, 38.0), 5.0, 22.0, 110.0, 25.0),
    )
    per_core = _native(generator, 75, 110)
    return _gpus(generator, node, _table(alone, gains, 128), per_core, link_gbs=of(3, 9))


def amperes(generator: np.random.Generator) -> World:
    """Return eight A100 (40 GB) with NVLink, and only four to six cores a GPU.

    Known: FP32 400, TF32 800 to 940, BF16 NHWC 2,100 to 2,500 each; a JPEG engine, so that DALI
    takes little of the GPU; NVLink hides all-reduce. No loader on the CPU follows these GPUs.
    """
    of = generator.uniform
    base = of(800, 940)
    alone = {
        ("fp32", False): of(0.42, 0.5) * base,
        ("fp32", True): of(0.38, 0.46) * base,
        (TORCH, False): base,
        (TORCH, True): of(1.0, 1.15) * base,
        ("bf16", False): of(1.3, 1.6) * base,
        ("bf16", True): of(2.4, 2.75) * base,
    }
    gains = {"fp32": of(1.01, 1.05), TORCH: of(1.06, 1.15), "bf16": of(1.15, 1.35)}
    each = int(generator.choice([4, 6]))
    node = Node(
        Card(40, of(4500, 6500), of(0.25, 0.5)),
        Cores(8 * each, 16 * each),
        8,
        (256, 512),
        each,
        "bf16",
        Times((25.0, 50.0), 5.0, 22.0, 95.0, 30.0),
    )
    per_core = _native(generator, 100, 150)
    return _gpus(generator, node, _table(alone, gains, 256), per_core, link_gbs=of(120, 220))


def cloud(generator: np.random.Generator) -> World:
    """Return a cloud node: two or four T4 (16 GB), each with two vCPUs, on a virtual machine.

    Known: FP32 90 to 115, FP16 NHWC 230 to 300 each; a vCPU is half a core; no peer-to-peer.
    Decoding takes much of a T4. More processes than vCPUs hurt, and compiling takes minutes.
    """
    of = generator.uniform
    base, slower = of(90, 115), of(0.8, 0.95)
    alone = _before_ampere(base, slower, of(1.7, 2.0), of(2.3, 2.8))
    plain = of(1.0, 1.06)
    gains = {"fp32": plain, TORCH: plain, "fp16": of(1.02, 1.15)}
    ranks = int(generator.choice([2, 4]))
    node = Node(
        Card(15, of(900, 1400), of(0.7, 0.95)),
        Cores(ranks, 2 * ranks),
        ranks,
        (64, 128),
        int(generator.choice([1, 2])),
        "fp16",
        Times((22.0, 45.0), 6.0, 28.0, 170.0, 40.0),
    )
    per_core = _native(generator, 70, 105)
    return _gpus(generator, node, _table(alone, gains, 64), per_core, link_gbs=of(1.5, 4))


def grace(generator: np.random.Generator) -> World:
    """Return a GH200: a Hopper GPU with 96 GB, and 72 ARM cores.

    The GPU's rates are about those of an H200; invented: those of the cores, which lack some SIMD
    paths of x86, so turbo gains less. With many processes the CPU follows;
    then decoding on the GPU loses.
    """
    of = generator.uniform
    base = of(1350, 1600)
    alone = {
        ("fp32", False): of(0.4, 0.46) * base,
        ("fp32", True): of(0.37, 0.44) * base,
        (TORCH, False): base,
        (TORCH, True): of(1.05, 1.2) * base,
        ("bf16", False): of(1.6, 1.85) * base,
        ("bf16", True): of(2.8, 3.3) * base,
    }
    gains = {"fp32": of(1.02, 1.06), TORCH: of(1.1, 1.2), "bf16": of(1.2, 1.42)}
    workers = int(generator.choice([16, 24, 36]))
    card = Card(96, of(9000, 14000), of(0.3, 0.6))
    node = Node(
        card,
        Cores(72, 72),
        1,
        (256, 512, 1024),
        workers,
        "bf16",
        Times((14.0, 28.0), 5.0, 16.0, 90.0, 20.0),
    )
    per_core = _native(generator, 100, 150) | {TURBO: of(130, 220)}
    return _gpus(generator, node, _table(alone, gains, 256), per_core)


def tiny(generator: np.random.Generator) -> World:
    """Return one or two GPUs of 24 GB (A10, L4) with images of 32 px: Python's overhead rules.

    Known: an eager step of ResNet50 takes 20 to 35 ms to launch, autocast adds a fifth or more, and
    the compiler saves a third to a half. So half precision loses, and larger batches are for free.
    """
    of = generator.uniform
    launch_s, cast, saved = of(0.020, 0.034), of(1.12, 1.35), of(0.5, 0.68)
    layout, kernels = of(1.0, 1.06), of(9000, 18000)
    speeds = {"fp32": of(0.8, 1.0), TORCH: 1.0, "bf16": of(1.3, 1.7)}

    def alone(one: Training) -> float:
        launched = launch_s * (cast if one.precision == "bf16" else 1.0)
        launched *= (saved if one.compile else 1.0) * (layout if one.channels_last else 1.0)
        busy = one.batch / (kernels * speeds[one.precision])
        return float(one.batch / (launched**4 + busy**4) ** 0.25)

    ranks, cores = int(generator.choice([1, 1, 2])), int(generator.choice([4, 8]))
    card = Card(24, of(12000, 20000), of(0.5, 0.9), IMAGE_GB / 40)
    node = Node(card, Cores(cores, 2 * cores), ranks, (32, 64, 128), 4, "bf16")
    per_core = _native(generator, 420, 800)  # Python's share of it is large
    per_core |= {TURBO: per_core[NATIVE] * of(1.1, 1.5)}
    return _gpus(generator, node, alone, per_core, link_gbs=of(6, 12))


def cpu_node(generator: np.random.Generator) -> World:
    """Return 64 x86 cores in two sockets: 8 ranks or fewer, global batch 256, 64 or 224 px.

    Known: FP32 at 224 px 1.2 to 2.2 images/s a core, NHWC helps oneDNN by 5 to 35 %, and one rank
    of 64 threads scales badly. Invented: Gloo's rate between ranks, which small images wait for.
    """
    of = generator.uniform
    small = generator.random() < 0.5
    core, layout, worse = of(1.2, 2.2) * (10 if small else 1), of(1.05, 1.35), of(0.1, 0.2)

    def alone(one: Training) -> float:
        threads = 64 / one.ranks
        sockets = of_one_rank if one.ranks == 1 else 1.0
        return float(core * threads ** (1 - worse) * sockets * (layout if one.channels_last else 1))

    of_one_rank = of(0.7, 0.9)  # memory of the other socket
    per_core = _native(generator, 450, 700) if small else _native(generator, 80, 120)
    return _cpus(
        generator,
        Cores(64, 128),
        (8, 4, 2, 1),
        256,
        2,
        alone,
        per_core,
        of(8, 20),
        Times((4.0, 9.0), process_s=6.0),
    )


def arm_cores(generator: np.random.Generator) -> World:
    """Return 16 ARM cores in a cloud (as Graviton): 4 ranks or fewer, global batch 64, 64 px.

    Invented, by order of magnitude: 6 to 13 images/s a core; the fast kernels want NCHW or
    reorder, so NHWC costs up to 30 %; a vCPU is a whole core, and there are no second threads.
    """
    of = generator.uniform
    core, layout, worse = of(6, 13), of(0.7, 1.02), of(0.03, 0.14)

    def alone(one: Training) -> float:
        return float(core * (16 / one.ranks) ** (1 - worse) * (layout if one.channels_last else 1))

    per_core = _native(generator, 300, 500)
    per_core |= {TURBO: per_core[NATIVE] * of(1.05, 1.4)}
    return _cpus(generator, Cores(16, 16), (4, 2, 1), 64, 1, alone, per_core, of(3, 8), CPU)


KINDS: tuple[Callable[[np.random.Generator], World], ...] = (
    *(desktop, four_cards, voltas, amperes, cloud),
    *(grace, tiny, cpu_node, arm_cores),
)


def _gpus(
    generator: np.random.Generator,
    node: Node,
    alone: Rate,
    per_core: Mapping[tuple[str, str], float],
    disk: float = math.inf,
    link_gbs: float = 1.0,
) -> World:
    """Return the world of a machine with GPUs; `alone` is the rate of one of them."""
    names = NAMES if node.ranks > 1 else ("single",)
    sizes = [(name, node.ranks, batch) for batch in node.batches for name in names]
    costs, moved = _costs(generator), 2 * (node.ranks - 1) / node.ranks
    trainings = possible(
        lambda one: _together(one, alone, GRADIENTS_GB * moved / link_gbs, costs),
        *(sizes, ("fp32", TORCH, node.half)),
    )
    count = node.ranks * node.workers
    limit = {DALI_GPU: node.card.decode * node.ranks}
    loadings = _loadings(generator, node.cores, per_core, (count, 2 * count), limit, disk)
    pairs = _stolen(generator, node, trainings, loadings)
    space = Space(
        default_of("cuda", node.ranks, node.batches[0], node.workers, names[0]),
        settings=[HALF if node.half == "bf16" else OLD_HALF],
        strategies=names[1:],
        loaders=ON_GPU,
        larger=node.batches[1:],
        compiles=True,
        images=IMAGES,
    )
    failed = _full(node.card, trainings, loadings)
    threads = node.cores.threads
    return World("stranger", space, node.times, threads, trainings, loadings, pairs, failed)


def _cpus(
    generator: np.random.Generator,
    cores: Cores,
    ranks: Sequence[int],
    images: int,
    workers: int,
    alone: Rate,
    per_core: Mapping[tuple[str, str], float],
    copy_gbs: float,
    times: Times,
) -> World:
    """Return the world of a machine without GPUs; `images` is the global batch."""
    most = ranks[0]
    sizes = [(name, number, images // number) for number in ranks if number > 1 for name in NAMES]
    sizes += [("single", 1, images), ("single", 1, images // most)]
    costs = _costs_on_cpu(generator)
    trainings = possible(
        lambda one: _together(one, alone, 2 * GRADIENTS_GB * (one.ranks - 1) / copy_gbs, costs),
        *(sizes, ("fp32",), False),
    )
    numbers = sorted({number * workers * twice for number in ranks for twice in (1, 2)})
    loadings = _loadings(generator, cores, per_core, numbers, {}, math.inf)
    pairs = _shared(generator, cores, trainings, loadings)
    space = Space(
        default_of("cpu", most, images // most, workers, "ddp"),
        settings=[{"channels_last": True}],
        ranks=[_fewer(number, images // number) for number in ranks[1:]],
        strategies=NAMES[1:],
        loaders=ON_CPU,
        images=IMAGES,
    )
    # No ranks can share a process, so nothing reaches these pairs.
    never = frozenset((one, load) for one, load in pairs if load.processes % one.ranks)
    return World("stranger", space, times, cores.threads, trainings, loadings, pairs, never)


def _fewer(ranks: int, batch: int) -> dict[str, object]:
    """Return the settings of fewer ranks with the same global batch."""
    strategy = "ddp" if ranks > 1 else "single"
    return {"gpus_per_node": ranks, "strategy": strategy, "local_batch_size": batch}


def _before_ampere(
    base: float, slower: float, half: float, half_nhwc: float
) -> dict[tuple[str, bool], float]:
    """Return rates without TF32, by precision and NHWC; all but `base` are factors on it."""
    full = {False: base, True: slower * base}
    rates = {(name, nhwc): full[nhwc] for name in ("fp32", TORCH) for nhwc in full}
    return rates | {("fp16", False): half * base, ("fp16", True): half_nhwc * base}


def _table(rates: Mapping[tuple[str, bool], float], gains: Mapping[str, float], least: int) -> Rate:
    """Return the rate of one GPU from a table; larger batches gain up to 5 %."""

    def alone(one: Training) -> float:
        gain = gains[one.precision] if one.compile else 1.0
        larger = 1 + 0.05 * (1 - least / one.batch)
        return float(rates[one.precision, one.channels_last] * gain * larger)

    return alone


def _costs(generator: np.random.Generator) -> dict[str, Cost]:
    """Draw what strategies cost on GPUs: Horovod fuses, DeepSpeed and FSDP have more Python."""
    of = generator.uniform
    half = 0.5 if generator.random() < 0.5 else 1.0  # DeepSpeed's gradients
    return {
        "ddp": Cost(1.0, of(0.5, 0.65), of(0.0005, 0.002), of(0.96, 1.0)),
        "horovod": Cost(of(0.8, 1.1), of(0.45, 0.65), of(0.001, 0.005), of(0.92, 1.0)),
        "deepspeed": Cost(of(0.95, 1.1), of(0.3, 0.6), of(0.003, 0.010), of(0.78, 0.97), half),
        "fsdp": Cost(1.5, of(0.35, 0.6), of(0.008, 0.022), 1.0, 0.5),
    }


def _costs_on_cpu(generator: np.random.Generator) -> dict[str, Cost]:
    """Draw what strategies cost on CPUs, where communication takes cores and hides less."""
    of = generator.uniform
    return {
        "ddp": Cost(1.0, of(0.1, 0.35), of(0.002, 0.006), 1.0),
        "horovod": Cost(of(0.7, 1.3), of(0.1, 0.35), of(0.005, 0.015), 1.0),
        "deepspeed": Cost(of(1.0, 1.5), 0.0, of(0.010, 0.040), 1.0),
        "fsdp": Cost(of(1.5, 2.2), of(0.0, 0.15), of(0.03, 0.09), 1.0),
    }


def _together(one: Training, alone: Rate, sent_s: float, costs: Mapping[str, Cost]) -> float:
    """Return the rate of all ranks: a step of one, and what it does not hide of communication."""
    if one.ranks == 1:
        return alone(one)
    cost = costs[one.strategy]
    step_s = one.batch / (alone(one) * (cost.compiled if one.compile else 1.0))
    halved = cost.half if one.precision in ("bf16", "fp16") else 1.0
    exposed_s = max(0.0, sent_s * cost.traffic * halved - cost.overlap * step_s)
    return one.ranks * one.batch / (step_s + exposed_s + cost.overhead_s)


def _native(
    generator: np.random.Generator, low: float, high: float
) -> dict[tuple[str, str], float]:
    """Draw images/s of one core for each loader; DALI with the GPU leaves less to the core."""
    of = generator.uniform
    native = of(low, high)
    dali = native * of(1.25, 2.0)
    return {
        NATIVE: native,
        TURBO: native * of(1.35, 1.9),
        DALI_CPU: dali,
        DALI_GPU: native * of(3.5, 6.0),
        DALI_CPU_DECODE: dali * of(1.3, 1.9),
    }


def _loadings(
    generator: np.random.Generator,
    cores: Cores,
    per_core: Mapping[tuple[str, str], float],
    numbers: Iterable[int],
    limit: Mapping[tuple[str, str], float],
    disk: float,
) -> dict[Loading, float]:
    """Return the rates of loaders: by cores, at most a limit of the GPU and one of the disk."""
    found = {}
    for kind, rate in per_core.items():
        if kind[0] == "dali_gpu" and not limit:  # no GPU
            continue
        for number in numbers:
            most = min(limit.get(kind, math.inf), disk)
            # Close to a limit both slow each other down.
            both = (most**-4 + (rate * cores.speedup(number)) ** -4) ** -0.25
            found[Loading(*kind, number)] = float(both * generator.uniform(0.97, 1.03))
    return found


def _stolen(
    generator: np.random.Generator,
    node: Node,
    trainings: Mapping[Training, float],
    loadings: Mapping[Loading, float],
) -> Pairs:
    """Return pairs with DALI on the GPU, which takes its time, and with too many processes."""
    pairs = {}
    for training, rate in trainings.items():
        factors = {one[:2]: generator.uniform(1.0, 1.07) for one in loadings}
        for loading, other in loadings.items():
            factor = factors[loading[:2]]
            if loading.loader == "dali_gpu":
                # Without decoding there, the GPU still resizes and normalises.
                share = node.card.taken * (1.0 if loading.decode == "gpu" else 0.25)
                busy_s = 1 / rate + share / (node.card.decode * node.ranks)
                pairs[training, loading] = float(min(1 / busy_s, other) / factor)
            elif loading.processes > node.cores.threads:
                # The trainings' own processes wait for a core.
                pairs[training, loading] = float(min(rate, other) / (factor + 0.1))
    return pairs


def _shared(
    generator: np.random.Generator,
    cores: Cores,
    trainings: Mapping[Training, float],
    loadings: Mapping[Loading, float],
) -> Pairs:
    """Return all pairs on a CPU, where a loader takes cores from the training."""
    per_core: dict[str, float] = {}
    for loading, rate in loadings.items():
        one = rate / cores.speedup(loading.processes)
        per_core[loading.loader] = max(per_core.get(loading.loader, 0.0), one)
    pairs = {}
    for training, rate in trainings.items():
        factors = {one[:2]: generator.uniform(1.0, 1.05) for one in loadings}
        for loading, other in loadings.items():
            together = 1 / (1 / rate + 1 / (per_core[loading.loader] * cores.cores))
            crowd = 1 + 0.04 * loading.processes / cores.cores
            factor = factors[loading[:2]] * crowd
            pairs[training, loading] = float(min(together, 0.95 * other) / factor)
    return pairs


def _full(
    card: Card, trainings: Iterable[Training], loadings: Iterable[Loading]
) -> frozenset[Training | Loading | tuple[Training, Loading]]:
    """Return what does not fit a GPU's memory; DALI's buffers grow with the batch."""
    failed: set[Training | Loading | tuple[Training, Loading]] = set()
    for one in trainings:
        half = 0.56 if one.precision in ("bf16", "fp16") else 1.0
        compiled = 0.9 if one.compile else 1.0
        states = 0.4 / (one.ranks if one.strategy == "fsdp" else 1)
        need = 1.0 + states + card.image_gb * one.batch * half * compiled
        if need > card.memory_gb:
            failed.add(one)
            continue
        for loading in loadings:
            if loading.loader == "dali_gpu":
                buffers = (0.4 if loading.decode == "gpu" else 0.2) + 0.006 * one.batch
                if need + buffers > card.memory_gb:
                    failed.add((one, loading))
    return frozenset(failed)
