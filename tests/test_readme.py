"""The README and the pages of docs/: their commands exist, links lead somewhere, a study runs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from PIL import Image

from ddl_tools.cli import main
from ddl_tools.launch.study import find_study
from ddl_tools.records import agreement
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import PROJECT, README, committed
from tests import pages

PAGES = sorted(
    {*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")}
    | {*PROJECT.glob("[!.]*/README.md"), *PROJECT.glob("data/*/README.md")}
)
_CODE = re.compile(r"^```.*?^```", re.M | re.S)
_FILE = re.compile(r"`((?:ddl_core|ddl_tools|tests|benchmarks|studies|requirements)/[\w./-]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each line of shell in a page, without comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    for block in (block for language, block in blocks if language in ("", "bash")):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"(ddl|make|\.) ", line) and (words := shlex.split(line, comments=True)):
                yield words


def parse(words: list[str]) -> None:
    """Parse the words of `ddl`, without calling anything."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise click.UsageError(f"no such command: {name}")
        command = found
    context = click.Context(command)
    rest = command.make_parser(context).parse_args(list(words))[1]
    if rest and not isinstance(command, click.Group):
        raise click.UsageError(f"too many arguments: {rest}")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.M))


def anchors(page: Path) -> set[str]:
    """Return the anchors that a code-hosting site gives the headings of a page."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+?)\s*$", text, re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_each_command_of_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    inline = re.findall(r"`((?:ddl|make) [^`\n]+)`", text)
    for words in [*commands(text), *(shlex.split(code) for code in inline)]:
        if words[0] == "ddl" and "COMMAND" not in words:
            parse(words[1:])
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets(), words


def test_a_command_that_is_missing_is_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["study", "sumbit"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    if page.name.startswith("add-a-"):
        return  # it tells which files to write
    for name in _FILE.findall(page.read_text(encoding="utf-8")):
        assert (PROJECT / name).exists(), name


def test_the_index_lists_every_page_and_notebook() -> None:
    """The site's sidebar is made of it."""
    listed = set()
    for index in (PROJECT / "docs" / "index.md", PROJECT / "figures" / "README.md"):
        links = _LINK.findall(index.read_text(encoding="utf-8"))
        listed |= {(index.parent / link.partition("#")[0]).resolve() for link in links}
        listed.add(index)
    assert {*PAGES, *PROJECT.glob("notebooks/*.ipynb")} - listed == {README}


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.notebook
@pytest.mark.alone
def test_the_sample_study_runs_to_a_ratio(tmp_path: Path) -> None:
    """As it stands in the README, but for the size of images and of training."""
    text = README.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    study = yaml.safe_load(block)
    # Many short rounds: on a busy machine some of each start are disturbed, and left out.
    small = {"image_size": 32, "local_batch_size": 8, "loader_workers": 1, "epochs": 10}
    study["repeats"] = 3
    study["base"] |= small | {"device": "cpu", "model": "resnet8"}
    (tmp_path / "my_study.yaml").write_text(yaml.safe_dump(study))
    for split, many in (("train", 2), ("val", 1)):
        for label in range(study["base"]["classes"]):
            folder = tmp_path / "DIR" / split / f"class{label:03}"
            folder.mkdir(parents=True)
            for number in range(many):
                picture = Image.new("RGB", (40, 40), (2 * label, 50 * number, 100))
                picture.save(folder / f"{number}.jpg")
    section = text.partition("## Answer your own question")[2].partition("\n## ")[0]
    where = {"DDL_RESULTS": str(tmp_path / "results")}
    said = [pages.ddl(PROJECT, tmp_path, *words[1:], **where) for words in commands(section)]
    verified, planned, ran, compared, _ = said
    assert "200" in verified
    assert planned.count("missing ") == 6
    assert "6 completed" in ran
    assert re.search(r"DALI \(CPU\).*: \d\.\d\d \[", compared)
    assert (tmp_path / "results" / "figures" / "my_study" / "comparison.png").is_file()


@pytest.mark.parametrize("page", [README, PROJECT / "docs" / "tutorials" / "first-run.md"])
def test_a_page_says_how_many_groups_hold_the_same_weights(page: Path) -> None:
    lines = agreement.statements(ledger(find_study("laptop"), committed()))
    (said,) = re.findall(r"`(same weights .* groups)`", page.read_text(encoding="utf-8"))
    assert said in lines
