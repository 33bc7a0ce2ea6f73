"""The search as one SLURM job on one node of a site, and a study of its answer on more nodes.

The job executes `ddl recommend` without ``--site``; ``--as`` names its search.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from ddl_core.errors import SpecError
from ddl_core.registry import title
from ddl_tools.launch.slurm.node_job import MARGIN_S, NodeJob, Show, distinguish
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.names import plural
from ddl_tools.recommend.answer import answer_file, training_file, write_study_file
from ddl_tools.recommend.search_space import Request, savings_text, search_name, site_space
from ddl_tools.records.paths import Tree, results_words
from ddl_tools.records.storage import read_text
from ddl_tools.study import Study

NODES = (1, 2, 4)
# Of the study of more nodes: one warm-up epoch and two measured ones.
EPOCHS, STEPS, STARTS = 3, 50, 3


class SiteSearch(NodeJob):
    """A search on one node of a site.

    Parameters
    ----------
    request
        Model, data and time of the search.
    words
        Options of `ddl recommend` that the job repeats; all of them tell searches apart.
    tree
        Where the records and the answer go.
    site_name, asked
        The machine, and what the command line asks of the job.
    """

    module = "ddl_tools.cli"
    made_by = "ddl recommend --site"
    noun = "search"
    kept = "completed starts"

    def __init__(
        self, request: Request, words: Sequence[str], tree: Tree, site_name: str, asked: JobPlan
    ) -> None:
        self.request = request
        words = [*words, f"--data={request.data_dir}", f"--results={tree.root}"]
        name = search_name(request.model, distinguish(site_name, asked, words))
        words = ["recommend", *words, f"--as={name}"]
        answer = answer_file(tree, name)
        super().__init__(words, name, answer, tree, site_name, asked, request.minutes)

    def preview(self) -> str:
        """Return what the job will try, as far as it is known without its node.

        `DataError` if the folder holds no data set, or too few images.
        """
        found, gpus = site_space(self.request, self.site), self.site.gpus_per_node
        if gpus and max(self.request.workers, default=1) > gpus:
            raise SpecError(
                f"--workers {max(self.request.workers)}: a node of this site has "
                f"{plural(gpus, 'GPU')}, and each rank needs one of its own"
            )
        strategies = ", ".join(title("strategy", name) for name in ("ddp", *found.strategies))
        loaders = dict.fromkeys(title("loader", level["loader"]) for level in found.loaders)
        parts = (
            f"{self.request.minutes:g} min of search, {MARGIN_S // 60} min for start and figures"
        )
        lines = [
            f"site: {self.site.description}; one node with "
            f"{plural(gpus, 'GPU') if gpus else 'all its cores'}",
            f"data: {found.images:,} training images in {self.request.data_dir}",
            f"strategies: {strategies}",
            f"loaders: {', '.join(loaders)}",
            savings_text(found),
            "numbers of ranks and further settings: as the node of the job allows",
            *(f"not tried: {one}" for one in found.missing),
            self.cost(parts),
        ]
        return "\n".join(lines)

    def prepare(self) -> None:
        """Remove an earlier answer and its study."""
        super().prepare()
        self._nodes_file.unlink(missing_ok=True)

    def show_answer(self, show: Show, dry_run: bool) -> None:
        """Show the answer, and the commands that use it."""
        training = training_file(self.tree, self.name)
        study = nodes_study(Study.load(training), f"{self.name}_nodes")
        if not dry_run and not self._nodes_file.exists():
            write_study_file(study, self.tree)
        show(read_text(self.answer))
        nodes = ", ".join(map(str, NODES))
        show(
            f"on {self.site_name}, in place of the line start:\n"
            f"  {self._submission(training)}\n"
            f"the same configuration on {nodes} nodes, first the cost:\n"
            f"  {self._submission(self._nodes_file)} --dry-run\n"
            "to measure longer, in place of the line page: this, then the same command again\n"
            f"  {self.remove_words()}"
        )

    @property
    def _nodes_file(self) -> Path:
        return self.answer.with_name(f"{self.name}_nodes.yaml")

    def _submission(self, study_file: Path) -> str:
        given = self.asked
        words = ["ddl", "study", "submit", str(study_file), "--data", str(self.request.data_dir)]
        words += ["--site", self.site_name, *results_words(self.tree)]
        words += ["--account", given.account] if given.account else []
        words += ["--partition", given.partition] if given.partition else []
        return shlex.join(words)


def nodes_study(training: Study, name: str) -> Study:
    """Return the study of a training's configuration on 1, 2 and 4 nodes, in short epochs."""
    base = {field: value for field, value in training.base.items() if field != "nodes"}
    if base.get("strategy", "single") == "single":
        base["strategy"] = "ddp"  # of one rank a node
    short = {"epochs": EPOCHS, "min_steps_per_epoch": STEPS, "eval_every": 0, "checkpoint_every": 0}
    return Study(
        name=name,
        question="How does the throughput of the recommended configuration grow with the nodes?",
        base=base | short,
        axes=[{"nodes": [*NODES]}],
        repeats=STARTS,
    )
