"""The command `ddl`.

Commands import slow modules (papermill, pandas, matplotlib, the launchers) inside their functions:
`ddl --help` answers at once, and works where these are not installed.
"""

import errno
import io
import os
import sys
from typing import Any

from ddl_core.errors import STOPPED, DDLError, Interrupted, SpecError
from ddl_tools import import_errors

try:
    # What the environment may lack or replace is imported from here on.
    with import_errors.explained(sys.argv[1:], any_module=True):
        import click

        from ddl_core import __version__
        from ddl_tools.cli import data, slurm, study, tools
        from ddl_tools.cli.output import say
        from ddl_tools.cli.recommend import recommend
        from ddl_tools.processes import safe_imports
        from ddl_tools.visible import visible
except KeyboardInterrupt:  # Ctrl-C in the first moment
    sys.exit(STOPPED)


class Application(click.Group):
    """A group that shows the errors a user can cause as one message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return self._invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = visible(error.message)  # click declares it final
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # for names that are not UTF-8
        try:
            for name in ("DDL_STALL_TIMEOUT", "DDL_SETUP_TIMEOUT"):
                _check_seconds(name)
            if outside := import_errors.from_outside():
                say(f"warning: {'; '.join(import_errors.why_from_outside(outside))}", err=True)
            with safe_imports(), import_errors.explained(sys.argv[1:]):
                return super().invoke(ctx)
        except Interrupted as error:
            say(error, err=True)
            sys.exit(STOPPED)
        except DDLError as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            say("stopped", err=True)
            sys.exit(STOPPED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # who read the output has seen enough
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}") from None
        except UnicodeError as error:
            raise click.ClickException(
                f"a text or a path is not UTF-8 ({error}); rename it, or make a link with a plain "
                "name (ln -s) and name that"
            ) from None


def _check_seconds(variable: str) -> None:
    text = os.environ.get(variable)
    try:
        good = not text or float(text) > 0
    except ValueError:
        good = False
    if not good:
        raise SpecError(f"{variable} = {text!r}: a positive number of seconds is meant, as 300")


@click.group(
    cls=Application, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__, prog_name="ddl")
def main() -> None:
    """Measure data-parallel training fairly: strategies, loaders, models, numbers of GPUs.

    How should I train in parallel here?  ddl recommend --model resnet18 --data DIR
    """


for command in (slurm.submit_command, slurm.cancel_command):
    study.study.add_command(command)
for command in (
    recommend,
    study.run,
    study.study,
    tools.figures,
    tools.report,
    tools.advise,
    tools.proposal,
    data.data,
    tools.bench,
    tools.profile,
    tools.doctor,
    tools.kernel,
):
    main.add_command(command)
