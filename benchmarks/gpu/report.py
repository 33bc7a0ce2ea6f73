"""The report of a campaign on a GPU: what was found, in which environment, and what is missing."""

import statistics
from pathlib import Path

from ddl_core.config import run_fields
from ddl_tools.launch.study import find_study
from ddl_tools.records import agreement
from ddl_tools.records.archive import REPORT
from ddl_tools.records.ledger import Entry, counts, ledger
from ddl_tools.records.paths import STUDIES, Tree
from ddl_tools.records.provenance import host, provenance
from ddl_tools.records.run import read_epochs
from ddl_tools.study import Study

ANSWER = "the answer:\n"  # what stands above it in a log is progress


def is_study(part: str) -> bool:
    """Say whether a part is a study of this name."""
    return (STUDIES / f"{part}.yaml").exists()


def wanted(name: str, device: str) -> Study:
    """Return a study as it is made on a device: on the CPU, a rehearsal under another name."""
    study = find_study(name)
    if device == "cuda":
        return study
    base = {**study.base, "device": device}
    if base["model"] == "resnet18":  # six small steps an epoch: CPUs are slow in bf16 and fp16
        base |= {"model": "resnet8", "image_size": 32, "local_batch_size": 8}
        base |= {"train_images": 48, "eval_images": 8}
    # NCCL alone sums bf16; a compiler for the CPU takes minutes, and has tests of its own.
    axes = [
        grid
        for grid in study.axes
        if grid.get("ddp_compression") != ["bf16"] and "compile" not in grid
    ]
    return study.model_copy(update={"name": f"{name}_{device}", "base": base, "axes": axes})


def write(folder: Path, tree: Tree, parts: list[str], device: str) -> Path:
    """Write ``report.md`` from the logs of the parts and the records of their studies."""
    sections = [_environment()]
    for part in parts:
        log = folder / f"{part}.log"
        if is_study(part):
            sections.append(_study(wanted(part, device), tree))
        elif log.exists():
            text = log.read_text(encoding="utf-8").rpartition(ANSWER)[2].strip()
            sections.append(f"## {part}\n\n```\n{text}\n```")
    path = folder / REPORT
    path.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return path


def _environment() -> str:
    code, machine = provenance(), host()
    packages = ", ".join(f"{name} {version}" for name, version in code["packages"].items())
    return "\n".join(
        [
            "# What a GPU shows",
            "",
            f"Commit {code['git_commit'] or 'unknown'}{'+' if code['git_dirty'] else ''}; "
            f"{machine['cpu']}, {machine['cpu_cores']} cores; Python {code['python']}; {packages}.",
            *(
                [f"**Not the pinned environment**: {', '.join(code['not_pinned'])}."]
                if code["not_pinned"]
                else []
            ),
        ]
    )


def _study(study: Study, tree: Tree) -> str:
    entries = ledger(study, tree)
    varying = [
        name
        for name in run_fields()
        if name != "strategy" and len({getattr(item.spec, name) for item in entries}) > 1
    ]
    lines = [
        "| what | state | images/s | waits for data | J/image | GPU memory, GB | run, or why not |",
        "|---|---|--:|--:|--:|--:|---|",
        *(_line(item, varying) for item in entries if item.state != "missing"),
    ]
    head = [f"## {study.name}", "", study.question, "", counts(entries), ""]
    return "\n".join([*head, *lines, "", *agreement.statements(entries)]).rstrip()


def _line(item: Entry, varying: list[str]) -> str:
    changed = item.spec.model_dump(exclude_defaults=True)
    what = [
        item.spec.strategy,
        *(_named(name, changed[name]) for name in varying if name in changed),
    ]
    why = item.reason.splitlines()[0].replace("|", "/") if item.reason else item.spec.run_id
    return f"| {' | '.join([', '.join(what), item.state, *_numbers(item), why])} |"


def _named(name: str, value: object) -> str:
    """Return the name of a switch that is on, and else name and value."""
    return name if value is True else f"{name} {value}"


def _numbers(item: Entry) -> list[str]:
    """Return images/s, share of waiting, joules an image and memory, medians of warm epochs."""
    rows = [] if item.state != "completed" else read_epochs(item.directory)
    warm = [row for row in rows if row.phase == "train" and not row.cold]
    if not warm:
        return [""] * 4
    rate = statistics.median(row.throughput_samples_per_s for row in warm)
    share = statistics.median(row.data_s / row.wall_s for row in warm)
    joules = [row.energy_j / row.samples for row in warm if row.energy_j is not None]
    memory = [row.max_memory_bytes for row in warm if row.max_memory_bytes is not None]
    return [
        f"{rate:.0f}",
        f"{share:.1%}",
        f"{statistics.median(joules):.3g}" if joules else "",
        f"{max(memory) / 1e9:.1f}" if memory else "",
    ]
