"""Search for the fastest configuration of a command of the user's: `ddl recommend --command`.

The configurations are all combinations of the values to try, the first of each is the default. A
pilot of the default says how long a window takes. Then all start, interleaved, and those close to
the fastest start again as long as there is time: by `plan`, as for networks of this project.
"""

import hashlib
import itertools
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_core.registry import COMMAND
from ddl_tools import gpus
from ddl_tools.launch.interleave import GIB, HERE, MARGIN, SPARE_BYTES, free_bytes
from ddl_tools.launch.plan_notes import commands
from ddl_tools.launch.study import doubts, run_study
from ddl_tools.names import plural
from ddl_tools.processes import setting
from ddl_tools.rank.command import words
from ddl_tools.rank.reports import WINDOW_S
from ddl_tools.recommend import plan
from ddl_tools.recommend.answer import Outcome
from ddl_tools.recommend.plan import FINISH_S, RIVALS, Space
from ddl_tools.recommend.search import Starts, first, study_of
from ddl_tools.recommend.search_space import change, on_this_machine, search_name
from ddl_tools.records import agreement
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import read_epochs
from ddl_tools.study import PLACEHOLDER, Study, YamlLoader
from ddl_tools.visible import visible

# Fields of a run that shape its start and its windows: they may be tried beside words.
FIELDS = ("strategy", "gpus_per_node", "discard_steps")
# A cold window, the first one of a start, and two that count.
WINDOWS = 4
DISCARD_STEPS = 5
PILOT_WINDOWS = 2
EXAMPLE = "--try batch=32,64"
SCRIPTS = (".py", ".sh", ".yaml", ".yml", ".toml")  # of files that a command names
# What hangs is ended after this share of the time, and after LEAST_S at the earliest.
PATIENCE, LEAST_S = 0.25, 30.0
TIMEOUTS = ("DDL_STALL_TIMEOUT", "DDL_SETUP_TIMEOUT")
NOT_OFFERED = (
    "whether the configurations train the same weights, and the share of each part in the time; "
    "another batch can change the accuracy"
)


@dataclass(frozen=True)
class CommandRequest:
    """What is asked of ``ddl recommend --command``; `tried` has values by name, as texts."""

    command: str
    tried: Mapping[str, Sequence[str]]
    minutes: float = 10.0

    def __post_init__(self) -> None:
        """Raise `SpecError` where command and values do not belong together."""
        used = dict.fromkeys(PLACEHOLDER.findall(self.command))
        if lacking := [name for name in used if name not in {*self.tried, *FIELDS}]:
            raise SpecError(
                f"--command has {{{lacking[0]}}}, but no values for it; add them, e.g. "
                f"--try {lacking[0]}=32,64"
            )
        for name, values in self.tried.items():
            if name not in used and name not in FIELDS:
                raise SpecError(
                    f"--try {name}: the command has no {{{name}}}; write it into the command, or "
                    f"choose a field of a run: {', '.join(FIELDS)}"
                )
            if len({*values}) < len(values):
                raise SpecError(f"--try {name}: a value is there twice; keep one")
        if math.prod(map(len, self.tried.values())) < 2:
            raise SpecError(f"there is nothing to compare; name two values to try, e.g. {EXAMPLE}")

    def space(self) -> Space:
        """Return all combinations that can be; `SpecError` if the default cannot, or no other."""
        found, missing = list[RunSpec](), list[str]()
        for values in itertools.product(*self.tried.values()):
            try:
                found.append(self._configuration(dict(zip(self.tried, values, strict=True))))
            except SpecError as error:
                if not found:
                    raise
                missing.append(f"{' '.join(values)}: {error}")
        if len(found) < 2:
            raise SpecError(f"there is nothing to compare; {'; '.join(missing)}")
        return on_this_machine(Space(found[0], given=found[1:], missing=missing), Path.cwd())

    def _configuration(self, values: Mapping[str, str]) -> RunSpec:
        """Return the run of some values, filled in as a study does it."""

        def word(found: re.Match[str]) -> str:
            return found[0] if found[1] in FIELDS else values[found[1]]

        fields = {name: text for name, text in values.items() if name in FIELDS}
        base = {
            "framework": COMMAND,
            "command": PLACEHOLDER.sub(word, self.command),
            "device": "cuda" if gpus.listed() else "cpu",
            "epochs": WINDOWS,
            "discard_steps": DISCARD_STEPS,
            **{name: yaml.load(text, YamlLoader) for name, text in fields.items()},
        }
        (found,) = Study(name=COMMAND, question="", base=base, repeats=1).expand()
        return found

    def least_s(self, number: int) -> float:
        """Return the seconds that the windows of one start of each configuration take at least."""
        return WINDOW_S * (PILOT_WINDOWS + WINDOWS * number)


class CommandSearch(Starts):
    """A search for the fastest configuration of a command.

    `name` is made from the request, the machine, the folder and the files that the command names:
    then the same call goes on, and a changed script is measured anew.
    """

    def __init__(self, request: CommandRequest, tree: Tree, name: str | None = None) -> None:
        self.request, found = request, request.space()
        number = 1 + len(found.given)
        self._check_time(request.least_s(number), number)
        name = name or search_name(COMMAND, _told_apart(found))
        question = "Which configuration of the command is the fastest on this machine?"
        super().__init__(found, tree, name, question, request.minutes)
        self._cold_s = self._window_s = 0.0
        self.alone = ""

    def _check_time(self, needed_s: float, number: int) -> None:
        """Raise `SpecError` if one start of each configuration takes longer than there is time."""
        if needed_s > 60 * self.request.minutes - FINISH_S:
            minutes = math.ceil((needed_s + FINISH_S) / 60)
            raise SpecError(
                f"--minutes {self.request.minutes:g} is too short for one start of each of "
                f"{number} configurations; allow --minutes {minutes}, or try fewer values"
            )

    def plan_text(self) -> str:
        """Return which commands will start, and how long they are measured."""
        found, minutes = self.space, self.request.minutes
        every = [found.default, *found.given]
        least_s = self.request.least_s(len(every))
        lines = [
            f"here: {found.machine}",
            commands(every),
            f"default (the first value of each --try): {line_of(found.default)}",
            f"others: {'; '.join(change(one, found.default) for one in found.given)}",
            f"1. the default alone: {PILOT_WINDOWS} windows of at least {WINDOW_S:g} s",
            f"2. one start of each of the {len(every)}, interleaved: at least "
            f"{plural(math.ceil(least_s / 60), 'minute')}",
            "3. further starts of the default and of what is close to the fastest, in the rest of "
            f"{minutes:g} min",
            *(f"not tried: {one}" for one in found.missing),
            f"not offered: {NOT_OFFERED}",
            "Ctrl-C ends with what is known; the same command goes on",
        ]
        return "\n".join(filter(None, lines))

    def run(self) -> None:
        """Measure; see `Starts.run`. What hangs is ended early enough for others."""
        patience_s = max(LEAST_S, PATIENCE * 60 * self.request.minutes)
        unset = [name for name in TIMEOUTS if not os.environ.get(name)]
        with setting(dict.fromkeys(unset, f"{patience_s:.0f}")):
            super().run()

    def resume(self) -> None:
        """Take up what the records say; measure two windows of the default alone."""
        began_s = self.left_s
        default = self.space.default.model_copy(update={"epochs": PILOT_WINDOWS})
        pilot = study_of(self.parts_name, self.question, [default])
        with self.load.watched():
            (item,) = run_study(pilot, self.tree, retry_failed=True, only=[default.run_id])
        if item.state != "completed":
            raise LaunchError(f"the default cannot be measured: {line_of(default)}: {item.reason}")
        cold, warm = read_epochs(item.directory)
        self._cold_s, self._window_s = cold.wall_s, warm.wall_s + (warm.step_s_median or 0.0)
        if (before_s := began_s - self.left_s - cold.wall_s - warm.wall_s) > 0:
            self._start_s = before_s  # it was not taken from the records
        self._check_memory(warm.max_memory_bytes or 0)
        self.look()
        new = plan.untried(self.space, self.known)
        blocks = math.ceil(len(new) / RIVALS)
        needed_s = self.block_s([*new, *[self.space.default] * blocks])
        if needed_s > self.left_s:
            spent_s = 60 * self.request.minutes - FINISH_S - self.left_s
            self._check_time(spent_s + needed_s, 1 + len(self.space.given))

    def _check_memory(self, per_rank: int) -> None:
        """Let starts be alone where two of them, of which one is stopped, find no memory."""
        default, free = self.space.default, free_bytes()
        on_gpu = default.device == "cuda"
        known = [amount for name, amount in free.items() if (name != HERE) == on_gpu]
        least = min(known, default=math.inf)
        held = per_rank * (1 if on_gpu else default.world_size)
        if 2 * MARGIN * held + SPARE_BYTES > least:
            self._interleaved = False
            self.alone = (
                f"started one after the other, as two find no memory: {held / GIB:.1f} GiB each, "
                f"{least / GIB:.1f} GiB free"
            )
            sys.stderr.write(visible(f"{self.alone}\n"))

    def cost_s(self, spec: RunSpec) -> float:
        """Return the seconds of the windows of a start, as far as is known now."""
        known = self._cold_s + (spec.epochs - 1) * self._window_s
        return self.known.took.get(spec, known)

    def measure_parts(self, parts: Sequence[RunSpec]) -> None:
        """Measure nothing: a command has no parts."""

    def _groups(self, block: Sequence[RunSpec]) -> int:
        """Return the number of configurations: each imports and reads in its own cold window."""
        return len(block)

    def _entries(self, name: str) -> list[Entry]:
        """Return the runs of what this call has named; records may come from anybody."""
        asked = {self.space.default, *self.space.given}
        return [item for item in super()._entries(name) if first(item.spec) in asked]


class CommandAnswer(Outcome):
    """What a search has found of a command."""

    not_offered = NOT_OFFERED
    search: CommandSearch
    hours = None
    training = None
    larger = None

    @property
    def default_name(self) -> str:
        """The line that starts the default."""
        return line_of(self.default)

    @property
    def start(self) -> str:
        """The line that starts the recommended configuration."""
        return line_of(self.chosen)

    @property
    def failed(self) -> list[str]:
        """What failed, and why, with the last lines of its script."""
        return [f"{self.change(spec)}: {why:.300}" for spec, why in self.known.failed.items()]

    @property
    def untried(self) -> list[str]:
        """Configurations for which there was no time."""
        names = [self.change(spec) for spec in plan.untried(self.space, self.known)]
        return [*([f"no time for {'; '.join(names)}"] if names else []), *self.space.missing]

    @property
    def doubts(self) -> list[str]:
        """What shows that numbers are not those of all ranks, or of the whole machine."""
        alone = [self.search.alone] if self.search.alone else []
        return [*alone, *doubts(agreement.completed(self._entries))]

    @property
    def memory(self) -> str:
        """The memory of a rank of what is recommended, and of the default."""
        amounts = [
            self._runs.loc[self._ids(spec), "max_memory_bytes"].max()
            for spec in dict.fromkeys([self.chosen, self.default])
        ]
        texts = [f"{one / GIB:.2f} GiB" for one in amounts if one > 0]
        return f"{'; the default '.join(texts)} for each rank" if texts else ""


def line_of(spec: RunSpec) -> str:
    """Return the line that starts a command as it is measured."""
    return f"{spec.command}" if spec.strategy == "single" else shlex.join(words(spec))


def _told_apart(found: Space) -> str:
    """Return configurations, machine, folder, and what is in the files that commands name."""
    every = [found.default, *found.given]
    named = (Path(word) for one in every for word in shlex.split(one.command or ""))
    contents = []
    for path in dict.fromkeys(one for one in named if one.suffix in SCRIPTS):
        with suppress(OSError):
            contents.append(hashlib.sha256(path.read_bytes()).hexdigest())
    return f"{[one.run_id for one in every]} {found.hardware} {Path.cwd()} {contents}"
