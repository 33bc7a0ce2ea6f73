"""``ddl profile ...``."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from ddl_core.cli.options import FILE, checked_name, results_option, spec_options, tree_of
from ddl_core.records.paths import RunFiles
from ddl_core.spec.run import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@click.group()
def profile() -> None:
    """Find out where the time goes, with Nsight Systems."""


@profile.command("command")
@click.option("--site", "site_name", required=True, metavar="SITE",
              help="Machine: a name from slurm/, or a path.")  # fmt: skip
@click.option("--study", "study_name", default="nsys", show_default=True, metavar="NAME",
              callback=checked_name, help="Folder the run is kept under.")  # fmt: skip
@results_option
@spec_options
def command(site_name: str, study_name: str, root: Path | None, **fields: Any) -> None:
    """Print how the ranks of a run are started under nsys on a machine; start nothing.

    `ddl run --nsys` does this by itself, and so do the jobs of a study with `nsys: true`.
    """
    from ddl_core.launch import ranks
    from ddl_core.launch.slurm import script
    from ddl_core.launch.slurm.site import find_site

    spec, site = RunSpec.parse({**fields, "nsys": True}), find_site(site_name)
    files = RunFiles(tree_of(root).study(study_name) / spec.run_id)
    rank = [sys.executable, "-m", ranks.WORKER, str(files.directory)]
    click.echo(shlex.join(script.nsys_step(spec, site, rank, files.logs / "attempt_0")))


@profile.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...",
                type=FILE)  # fmt: skip
@click.option("--csv", "csv", metavar="OUT", type=FILE,
              help="Also write the table as CSV.")  # fmt: skip
def import_command(files: tuple[Path, ...], csv: Path | None) -> None:
    """Print the shares of time in files of Nsight Systems, a line for each rank.

    FILE is what `nsys export --type sqlite REPORT.nsys-rep` wrote, or what `nsys stats --format
    csv` printed of cuda_gpu_kern_sum or cuda_gpu_trace. Name the files of all ranks of a run: only
    together they tell transfer from waiting. docs/profiling.md says what the shares are.
    """
    from ddl_core.analysis.nsys import table

    shares = table(tqdm(files, desc="files", unit="file", leave=False, disable=None))
    if csv:
        shares.to_csv(csv, index=False)
    click.echo(_text(shares))


def _text(shares: "pd.DataFrame") -> str:
    """Return the table for people: shares in percent, what is not known as a dash."""
    lines, key = [], ["file", "rank", "pid", "gpu"]
    for whole, part in shares.groupby("of", sort=False):
        part = part.astype(dict.fromkeys(key, "object")).fillna({"gpu": "-"})
        part["value"] *= 100
        names = list(part["share"].unique())
        wide = part.pivot(index=key, columns="share", values="value")[names]
        text = wide.reset_index().to_string(index=False, na_rep="-", float_format="%.1f")
        lines += [f"Percent of the {whole}", text, ""]
    for file, notes in shares.groupby("file", sort=False)["note"]:
        lines += [f"{file}: {note}" for note in notes.unique() if note]
    return "\n".join(lines).rstrip()
