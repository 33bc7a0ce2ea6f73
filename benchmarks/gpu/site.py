"""`make gpu` as one SLURM job on one node of a site."""

import hashlib
from collections.abc import Sequence

from ddl_core.errors import SpecError
from ddl_tools.launch.slurm.node_job import MARGIN_S, NodeJob, Show, distinguish
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.records.archive import REPORT
from ddl_tools.records.paths import Tree
from ddl_tools.records.storage import read_text

FILE = "ddl-gpu.zip"


class SiteCampaign(NodeJob):
    """A campaign on one node of a site; its report is the answer.

    Parameters
    ----------
    words
        Arguments of `benchmarks.gpu` that the job repeats; all of them tell campaigns apart.
    minutes, table
        The limits of all parts together, and what each part costs.
    tree
        Where the records, the report and the file go.
    site_name, asked
        The machine, and what the command line asks of the job.
    """

    module = "benchmarks.gpu"
    made_by = "make gpu GPU=--site"
    noun = "campaign"
    kept = "complete runs"

    def __init__(
        self,
        words: Sequence[str],
        minutes: float,
        table: str,
        tree: Tree,
        site_name: str,
        asked: JobPlan,
    ) -> None:
        self.table = table
        self.rehearsal = "--device=cpu" in words
        words = [*words, f"--results={tree.root}"]
        text = distinguish(site_name, asked, words)
        name = f"gpu_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        answer = tree.root / "gpu" / name / REPORT
        words = [*words, f"--as={name}"]
        super().__init__(words, name, answer, tree, site_name, asked, minutes)

    def check(self, device: str) -> None:
        """Raise `SpecError` if the site has no GPU and one is needed."""
        if device == "cuda" and not self.site.gpus_per_node:
            raise SpecError(
                f"site {self.site_name!r} has no GPUs; choose another --site, or rehearse with "
                "--device cpu"
            )

    def preview(self) -> str:
        """Return what each part costs, and the job."""
        parts = f"{self.minutes:.0f} min of parts, {MARGIN_S // 60} min for start and report"
        return f"{self.table}\nsite: {self.site.description}; one node\n{self.cost(parts)}"

    def show_answer(self, show: Show, dry_run: bool) -> None:
        """Show the report and the file to publish."""
        show(read_text(self.answer))
        file = self.answer.with_name(FILE)
        publish = f"the file to publish: {file}\n  ddl study publish {file}"
        if self.rehearsal:
            publish = f"a rehearsal on the CPU, which says nothing of GPUs: {file}"
        show(publish if file.exists() else f"no file to publish; see {self.log}")
        show(f"if runs are left: this, then the same command again\n  {self.remove_words()}")
