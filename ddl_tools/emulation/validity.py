"""Facts of an emulated run from its counters, and the rules that make it invalid.

An emulated step takes the time asked for and that of its messages, unless ranks wait for a core,
send other bytes than theory says, or a link has another rate. The record of a run names the rules
that it breaks; figures leave such a run out.
"""

from itertools import chain

from ddl_core.config import RunSpec
from ddl_tools.emulation.counters import EpochCounters, read_counters, read_links
from ddl_tools.emulation.options import Emulated
from ddl_tools.records.paths import EmulationFiles
from ddl_tools.records.run import Emulation

# Of the cores, by the ranks and all others together. Below this share, nearly all steps were within
# 5 % of theory, above it many were too long, which looks like bad scaling; the numbers are in
# docs/explanation/emulation.md.
MAX_CPU = 0.25
MAX_LATE = 0.01  # of a step
LINK_ERROR = 0.05
# Of what theory sends: headers and acknowledgements of full packets.
MIN_SENT, MAX_SENT = 0.995, 1.04
# Headers of one more packet, which is not full, and of an acknowledgement: at each step of a ring.
PACKET_BYTES = 2 * 66
# What Horovod's ranks tell each other in a cycle, for each rank but one: at most 1,900 in published
# runs.
NEGOTIATION_BYTES = 2_000


def read(files: EmulationFiles, spec: RunSpec) -> Emulation | None:
    """Return the facts of a run and the rules that they break; None where no epoch counts.

    `RecordError` if a file of counters is missing or damaged.
    """
    counters = [read_counters(files, rank) for rank in range(spec.world_size)]
    if not all(counters):
        return None
    facts = _facts(spec, counters, read_links(files))
    return facts.model_copy(update={"unfaithful": broken_rules(spec, facts)})


def _facts(spec: RunSpec, counters: list[list[EpochCounters]], links: list[float]) -> Emulation:
    """Return the facts; `counters` has a list of epochs of each rank."""
    first = counters[0]
    cores, wall_s = first[0].cores, sum(epoch.wall_s for epoch in first)
    own = sum(epoch.cpu_s for epoch in chain(*counters)) / wall_s / cores
    busy = sum(epoch.machine_cpu_s for epoch in first) / wall_s / cores
    steps = sum(len(epoch.factors) for epoch in first)
    sent = [
        sum(epoch.sent_bytes or 0 for epoch in epochs) / steps
        for epochs in counters[:: spec.gpus_per_node]
    ]
    factors = zip(*(chain(*(epoch.factors for epoch in one)) for one in counters), strict=True)
    late_s = [sum(sum(epoch.late_s) for epoch in epochs) for epochs in counters]
    return Emulation(
        cores=cores,
        link_mbit_least=min(links, default=None),
        link_mbit_most=max(links, default=None),
        steps=steps,
        gradient_bytes=first[0].gradient_bytes,
        sent_bytes_least=min(sent),
        sent_bytes_most=max(sent),
        own_cpu_share=own,
        other_cpu_share=max(0.0, busy - own),
        late_share=max(late_s) / wall_s,
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
    halved = spec.ddp_compression == "fp16"
    times = 3 if spec.deepspeed_zero_stage else 2
    return times * (ranks - 1) / ranks * facts.gradient_bytes / (2 if halved else 1)


def broken_rules(spec: RunSpec, facts: Emulation) -> list[str]:
    """Return a text on each rule that an emulated run breaks: what was found, what is allowed."""
    own, other = facts.own_cpu_share, facts.other_cpu_share
    found = []
    if own + other > MAX_CPU:
        found.append(
            f"the cores were busy for a share of {own + other:.3f}, more than {MAX_CPU:g}: "
            f"{own:.3f} by the ranks, {other:.3f} by other programs"
        )
    if facts.late_share > MAX_LATE:
        late = facts.late_share
        found.append(f"the end of a step was late by {late:.3f} of it, more than {MAX_LATE:g}")
    if spec.nodes > 1:  # the link of a single node is not used
        found += [*_link_rates(spec, facts), *_bytes(spec, facts)]
    return found


def _link_rates(spec: RunSpec, facts: Emulation) -> list[str]:
    slowest, fastest = facts.link_mbit_least, facts.link_mbit_most
    if slowest is None or fastest is None:
        return ["the rate of the links was not measured"]
    asked = spec.of(Emulated)
    link, uplink = asked.emu_link_mbit, asked.emu_uplink_mbit
    if uplink:
        # Two flows across an uplink wait for each other's data with their acknowledgements, so they
        # need not fill it; but none is faster.
        wrong = slowest > min(uplink, link) * (1 + LINK_ERROR)
    else:
        wrong = slowest < link * (1 - LINK_ERROR)
    if not wrong and fastest <= link * (1 + LINK_ERROR):
        return []
    return [
        f"links carried {slowest:.3g} to {fastest:.3g} Mbit/s, more than {LINK_ERROR:.0%} off "
        f"{link:g}" + (f", uplink {uplink:g}" if uplink else "")
    ]


def _bytes(spec: RunSpec, facts: Emulation) -> list[str]:
    theory = sent_bytes(spec, facts)
    least, most = theory * MIN_SENT, theory * MAX_SENT
    if spec.strategy == "ddp":
        buckets = facts.gradient_bytes / (spec.ddp_bucket_mb * 2**20) + 2  # a first and a last one
        most += buckets * 2 * (spec.world_size - 1) * PACKET_BYTES
    if spec.strategy == "horovod":
        step_ms = spec.of(Emulated).emu_step_ms * facts.slowest_factor
        cycles = 1 + step_ms / spec.horovod_cycle_ms
        most += NEGOTIATION_BYTES * (spec.world_size - 1) * cycles
    if least <= facts.sent_bytes_least and facts.sent_bytes_most <= most:
        return []
    return [
        f"links sent {facts.sent_bytes_least:.4g} to {facts.sent_bytes_most:.4g} bytes a step, "
        f"theory is {theory:.4g}, allowed {least:.4g} to {most:.4g}"
    ]
