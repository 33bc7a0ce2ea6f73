"""``ddl recommend``."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ddl_core.errors import STOPPED, FairnessError
from ddl_tools.cli import options as common
from ddl_tools.cli.output import say, say_json
from ddl_tools.records.paths import Tree

if TYPE_CHECKING:
    from ddl_tools.recommend.answer import Outcome
    from ddl_tools.recommend.search import Starts

Kind = TypeVar("Kind", bound="Starts")


def _numbers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in (text or "").split(",") if part)
    except ValueError:
        found = (0,)
    if any(one < 1 for one in found):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers above 0, as 1,2,4")
    return found


def _tried(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    found = {}
    for text in texts:
        name, _, values = text.partition("=")
        parts = tuple(part for part in values.split(",") if part)
        if not name or not parts:
            raise click.BadParameter(f"{text!r} names no values, as batch=32,64 does")
        if name in found:
            raise click.BadParameter(f"{name} is there twice; give all its values at once")
        found[name] = parts
    return found


# With --command: all other options are of this project's training, or of a job.
OF_COMMAND = ("command", "tried", "minutes", "name", "tree", "dry_run", "as_json")
# With --site: options of this call, and those that the job gets in a form of its own.
OF_CALL = ("site_name", "account", "partition", "max_node_hours", "dry_run", "as_json")
OF_JOB = ("data_dir", "tree", "name")


@click.command(cls=common.Repeatable)
@click.option("--model", default="resnet50", help="Network, as of `ddl run`.")
@common.data_option
@click.option(
    "--minutes",
    type=common.Number(1, 10**6),
    metavar="N",
    default=10,
    help="Time limit.",
    show_default=True,
)
@click.option(
    "--workers",
    metavar="N,N,...",
    callback=_numbers,
    help="Numbers of ranks to try. [default: all GPUs; without a GPU 1, 2, 4, ... up to the cores]",
)
@click.option(
    "--command",
    metavar="TEXT",
    help='Script of your own, e.g. "python train.py --batch {batch}".',
)
@click.option(
    "--try",
    "tried",
    metavar="NAME=VALUE,...",
    multiple=True,
    callback=_tried,
    help="Values of {NAME} in --command, the default first; for each name.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 10**6),
    default=90,
    metavar="N",
    help="Epochs of the whole training, for its time.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Images per rank and step. [default: 64 on a GPU, 8 on a CPU]",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Largest batch to try, images per rank and step. [default: on a GPU, 32 times "
    "--batch; without a GPU, --batch]",
)
@click.option(
    "--precision",
    type=common.Name(["torch", "fp32", "tf32", "bf16", "fp16"]),
    help="The only arithmetic to try. [default: what PyTorch does by itself, and on a GPU bf16]",
)
@click.option(
    "--image-size",
    type=click.IntRange(8, 4096),
    default=224,
    metavar="N",
    help="Side of the training crop (pixels).",
)
@click.option("--uncached", is_flag=True, help="Read the images of each epoch from the disk.")
@common.site_option("Measure in a SLURM job on one node: a name from slurm/, or a path.")
@common.account_option
@common.partition_option
@click.option(
    "--max-node-hours",
    type=common.Number(),
    metavar="N",
    help="With --site: limit of the job, by its time limit. [default: 10]",
)
@click.option(
    "--as",
    "name",
    hidden=True,
    help="Name of the search.",
    callback=lambda *given: given[2] and common.checked_name(*given),
)
@common.results_option
@common.dry_run_option
@common.json_option
@click.pass_context
def recommend(
    context: click.Context,
    /,
    data_dir: Path | None,
    minutes: float,
    site_name: str | None,
    account: str | None,
    partition: str | None,
    max_node_hours: float | None,
    name: str | None,
    command: str | None,
    tried: dict[str, tuple[str, ...]],
    tree: Tree,
    dry_run: bool,
    as_json: bool,
    **request: Any,
) -> None:
    """Measure what is installed here, and say how to train a network on your images.

    Measures training alone and loading alone, for a few seconds each. Then it starts the best pairs
    of both, interleaved with what PyTorch does by itself, in the rest of the time. The first line
    of the answer says whether a gain is proven. Ctrl-C ends the search with what is known; the same
    command goes on.

    With --command, it measures a training script of your own, with all combinations of the values
    to --try: see docs/how-to/measure-your-script.md.

    With --site, one SLURM job does this on one node. The first call shows the node-hours and
    submits the job; later calls show its state, and then the answer.
    """
    from ddl_tools.launch.slurm.script import JobPlan
    from ddl_tools.recommend.answer import Answer
    from ddl_tools.recommend.command import CommandAnswer, CommandRequest, CommandSearch
    from ddl_tools.recommend.search import Search
    from ddl_tools.recommend.search_space import Request, plan_text
    from ddl_tools.recommend.site import SiteSearch

    if tried and command is None:
        raise click.UsageError("--try has values of a --command; name one")
    if command is not None:
        _refuse_others(context)
    if not site_name and (account or partition or max_node_hours is not None):
        raise click.UsageError(
            "--account, --partition and --max-node-hours are of SLURM jobs; name a --site"
        )
    if as_json and (site_name or dry_run):
        raise click.UsageError("--json is the answer of a search here, without --site or --dry-run")
    if command is not None:
        of_command = CommandSearch(CommandRequest(command, tried, minutes), tree, name=name)
        _answer(of_command, CommandAnswer, of_command.plan_text(), dry_run, as_json)
        return
    max_node_hours = 10.0 if max_node_hours is None else max_node_hours
    data_dir = data_dir or tree.dataset("sample")
    asked = Request(data_dir=data_dir.resolve(), minutes=minutes, **request)
    if site_name:
        words = common.repeated_words(context, without=(*OF_CALL, *OF_JOB))
        on_site = SiteSearch(asked, words, tree, site_name, JobPlan(account, partition))
        on_site.proceed(say, max_node_hours, dry_run)
        return
    search = Search(asked, tree, name=name)
    _answer(search, Answer, plan_text(asked, search.space), dry_run, as_json)


def _refuse_others(context: click.Context) -> None:
    """Refuse the options of this project's training, and those of a job, beside --command."""
    given = context.meta[common.GIVEN]
    for option in context.command.params:
        if option.name in given and option.name not in OF_COMMAND:
            word = option.opts[0].lstrip("-")
            raise click.UsageError(
                f"--{word} changes nothing in a --command; a value for the script belongs into the "
                f'command itself: --command "python train.py --{word} {{{word}}}" --try '
                f"{word}=VALUE,VALUE. In a SLURM job, call ddl recommend in its script"
            )


def _answer(
    search: "Kind", kind: "Callable[[Kind], Outcome]", plan: str, dry_run: bool, as_json: bool
) -> None:
    """Show what a search will do, search, and show what it has found."""
    from ddl_tools.cli.answers import Ratio, Recommend, settings

    say(plan, err=as_json)
    if dry_run:
        return
    search.run()
    answer = kind(search)
    picture = answer.write()
    if answer.alarm:
        say(answer.alarm, err=True, alarm=True)
    if as_json:
        model = Recommend(
            verdict=answer.verdict,
            recommended=settings(answer.chosen),
            default=settings(answer.default),
            unfit=answer.unfit,
            ratio=Ratio.model_validate(answer.ratio, from_attributes=True),
            hours=answer.hours,
            command=answer.start,
            lines=answer.lines,
            stopped=bool(answer.search.stopped),
        )
        say_json(model)
    else:
        say("\n" + "\n".join(answer.lines))
    if picture:
        say(f"figure: {picture}", err=True)
    if answer.alarm:
        raise FairnessError("the weights of some strategies differ, see above")
    if answer.search.stopped:
        sys.exit(STOPPED)
