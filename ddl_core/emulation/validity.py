"""What a cluster in a box did while a run was in it, and whether that was faithful.

An emulated step is as long as asked plus what its messages take on links of a known rate, as long
as nothing else takes time: ranks that wait for a core, bytes that no theory knows of, a link that
is faster or slower than it is told to be. Each such rule is checked in every run; one that is
broken says so in the record, and nothing of that run is drawn.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, ValidationError

from ddl_core.errors import RecordError
from ddl_core.records.paths import BoxFiles
from ddl_core.records.run import Emulation, RunRecord
from ddl_core.records.storage import Strict, cannot_write, write_atomically
from ddl_core.spec.run import RunSpec

# Found in a trial of 48 runs on two cores (docs/emulation.md): below this share steps were within
# 5 % of theory in nearly all, above it in few. All errors are of steps that are too long, so they
# look like bad scaling.
MOST_OWN_CPU = 0.2
MOST_OTHER_CPU = 0.2
MOST_LATE = 0.01  # of a step
LINK_ERROR = 0.05
FEWEST_BYTES, MOST_BYTES = 0.995, 1.04  # of what theory sends: headers and acknowledgements
# What Horovod's ranks tell each other in a cycle: in those runs 2,000 to 5,000.
NEGOTIATION_BYTES = 6_000


class Links(NamedTuple):
    """What the slowest and the fastest link carried before the run, Mbit/s."""

    least: float
    most: float


class Noted(Strict):
    """What one rank noted of one epoch of training: a line of its file."""

    epoch: int
    cold: bool
    wall_s: float
    cpu_s: float = Field(description="of the rank")
    machine_cpu_s: float = Field(description="of all processes, on the cores that ranks may use")
    cores: int
    sent_bytes: int | None = Field(description="by the node's link; null but for its first rank")
    gradient_bytes: int
    factors: list[float] = Field(description="times longer than asked, each step's compute")
    late_s: list[float] = Field(description="after the deadline, each step's end")


def write_links(files: BoxFiles, mbit: Sequence[float]) -> None:
    """Keep how fast the links are."""
    write_atomically(files.links, json.dumps(list(mbit)) + "\n")


def note(files: BoxFiles, rank: int, noted: Noted) -> None:
    """Add a line to what a rank has noted.

    Raises
    ------
    RecordError
        If it cannot be written.
    """
    path = files.rank(rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(noted.model_dump_json() + "\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def read(files: BoxFiles, spec: RunSpec) -> Emulation | None:
    """Return the facts of a run from what its ranks have noted; None where no epoch counts.

    Raises
    ------
    RecordError
        If a file is missing or damaged.
    """
    noted = [list(_lines(files.rank(rank))) for rank in range(spec.world_size)]
    if not all(noted):
        return None
    return _judged(spec, _facts(spec, noted, _links(files.links)))


def warnings(records: Iterable[RunRecord]) -> list[str]:
    """Return a line on the completed runs that break rules and are drawn nowhere, if any."""
    emulated = [one for one in records if one.spec.emulated and one.status == "completed"]
    found = [(one.run_id, facts) for one in emulated if (facts := one.emulation)]
    bad = [(name, facts.unfaithful) for name, facts in found if facts.unfaithful]
    if not bad:
        return []
    name, reasons = bad[0]
    return [
        f"unfaithful, and drawn nowhere: {len(bad)} of {len(emulated)} emulated runs, e.g. {name}: "
        f"{'; '.join(reasons)} (docs/emulation.md)"
    ]


def _lines(path: Path) -> Iterable[Noted]:
    try:
        found = [Noted.model_validate_json(line) for line in path.read_text().splitlines()]
    except (OSError, ValidationError) as error:
        raise RecordError(f"cannot read {path}: {error}") from None
    return (one for one in found if not one.cold)


def _links(path: Path) -> Links | None:
    try:
        mbit = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {path}: {error}") from None
    return Links(min(mbit), max(mbit)) if mbit else None


def _facts(spec: RunSpec, noted: list[list[Noted]], links: Links | None) -> Emulation:
    """Return the facts; `noted` has a list of epochs of each rank."""
    everyone = [one for epochs in noted for one in epochs]
    first = noted[0]
    cores, wall_s = first[0].cores, sum(one.wall_s for one in first)
    own = sum(one.cpu_s for one in everyone) / wall_s / cores
    busy = sum(one.machine_cpu_s for one in first) / wall_s / cores
    steps = sum(len(one.factors) for one in first)
    sent = [
        sum(one.sent_bytes or 0 for one in epochs) / steps
        for epochs in noted[:: spec.gpus_per_node]
    ]
    factors = zip(*([f for one in epochs for f in one.factors] for epochs in noted), strict=True)
    late = [sum(sum(one.late_s) for one in epochs) / steps for epochs in noted]
    return Emulation(
        cores=cores,
        link_mbit_least=links and links.least,
        link_mbit_most=links and links.most,
        steps=steps,
        gradient_bytes=first[0].gradient_bytes,
        sent_bytes_least=min(sent),
        sent_bytes_most=max(sent),
        own_cpu_share=own,
        other_cpu_share=max(0.0, busy - own),
        late_share=max(late) * steps / wall_s,
        slowest_factor=sum(map(max, factors)) / steps,
    )


def sent_bytes(spec: RunSpec, facts: Emulation) -> float:
    """Return what each node's link has to carry in a step, each way, without headers.

    A ring over G ranks moves 2 (G-1)/G of the gradients over each link (Patarasuk and Yuan, J.
    Parallel Distrib. Comput. 69:117, 2009). DeepSpeed's stage 1 over Gloo adds the gathering of the
    weights, (G-1)/G. Ranks of one node are neighbours, so its link carries what one rank's would.
    """
    ranks = spec.world_size
    if spec.nodes == 1:
        return 0.0
    halved = "fp16" in (spec.ddp_compression, spec.horovod_compression)
    times = 3 if spec.deepspeed_zero_stage else 2
    return times * (ranks - 1) / ranks * facts.gradient_bytes / (2 if halved else 1)


def _judged(spec: RunSpec, facts: Emulation) -> Emulation:
    return facts.model_copy(update={"unfaithful": broken_rules(spec, facts)})


def broken_rules(spec: RunSpec, facts: Emulation) -> list[str]:
    """Return a text on each rule that an emulated run breaks: what was found, what is allowed."""
    shares = (
        ("the ranks' own share of the cores", facts.own_cpu_share, MOST_OWN_CPU),
        ("the share of the cores that others took", facts.other_cpu_share, MOST_OTHER_CPU),
        ("the share of a step that its end was late", facts.late_share, MOST_LATE),
    )
    found = [
        f"{what} is {share:.3f}, more than {most:g}" for what, share, most in shares if share > most
    ]
    return [*found, *_of_links(spec, facts), *_of_bytes(spec, facts)]


def _of_links(spec: RunSpec, facts: Emulation) -> list[str]:
    if spec.nodes == 1:
        return []
    if facts.link_mbit_least is None or facts.link_mbit_most is None:
        return ["the rate of the links was not measured"]
    asked, slow = spec.box_link_mbit, spec.box_uplink_mbit
    # Two flows across an uplink wait for each other's data with their acknowledgements, so they
    # need not fill it; but none is faster.
    low = facts.link_mbit_least < asked * (1 - LINK_ERROR) and not slow
    leak = slow and facts.link_mbit_least > min(slow, asked) * (1 + LINK_ERROR)
    if low or leak or facts.link_mbit_most > asked * (1 + LINK_ERROR):
        return [
            f"links carried {facts.link_mbit_least:.3g} to {facts.link_mbit_most:.3g} Mbit/s, "
            f"more than {LINK_ERROR:.0%} off {asked:g}" + (f", uplink {slow:g}" if slow else "")
        ]
    return []


def _of_bytes(spec: RunSpec, facts: Emulation) -> list[str]:
    theory = sent_bytes(spec, facts)
    least, most = theory * FEWEST_BYTES, theory * MOST_BYTES
    if spec.strategy == "horovod":
        step_ms = spec.box_step_ms * facts.slowest_factor
        most += NEGOTIATION_BYTES * (1 + step_ms / spec.horovod_cycle_ms)
    if spec.nodes == 1:
        return []  # its link is not used
    if facts.sent_bytes_least < least or facts.sent_bytes_most > most:
        return [
            f"links sent {facts.sent_bytes_least:.4g} to {facts.sent_bytes_most:.4g} bytes a step, "
            f"theory is {theory:.4g}, allowed {least:.4g} to {most:.4g}"
        ]
    return []
