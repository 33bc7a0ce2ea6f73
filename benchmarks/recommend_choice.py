"""Whether searches of `ddl recommend` on one machine contradict each other.

    python -m benchmarks.recommend_choice

Searches ten minutes for ResNet18 and the sample images, three times from nothing. Two searches
contradict each other in a configuration if their intervals of its ratio to the default have nothing
in common. The first answer is kept as it was printed, but with ``DIR`` for the folder of the images
and ``results`` for that of the records. All records lie in `build/recommend_choice`; a search that
is complete there is not made again.
"""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.interleaved import interval, shown, stored
from ddl_tools.estimate import Estimate
from ddl_tools.recommend import plan
from ddl_tools.recommend.answer import Answer, answer_file
from ddl_tools.recommend.search import Search
from ddl_tools.recommend.search_space import Request, change
from ddl_tools.records.paths import PROJECT, Tree

FOLDER = PROJECT / "build" / "recommend_choice"
MODEL = "resnet18"
SEARCHES = 3
MINUTES = 10.0


def measure() -> dict[str, Any]:
    """Search what is missing, compare and print."""
    data = Tree(FOLDER).dataset("sample")
    ddl("data", "sample", data)
    answers = []
    for number in range(SEARCHES):
        search = Search(Request(MODEL, data, MINUTES), Tree(FOLDER / f"search_{number}"))
        if not (search.tree.root / "recommend").exists():
            shutil.rmtree(search.tree.root, ignore_errors=True)
            ddl("recommend", "--model", MODEL, "--minutes", MINUTES, "--data", data,
                "--results", search.tree.root)  # fmt: skip
        answers.append(again(search))
    ratios = [found(answer) for answer in answers]
    searches: list[dict[str, Any]] = [
        {
            "verdict": str(answer.verdict),
            "chosen": change(answer.chosen, answer.default),
            "to_default": {name: interval(ratio) for name, ratio in own.items()},
        }
        for answer, own in zip(answers, ratios, strict=True)
    ]
    disjoint = [
        name
        for one, other in itertools.combinations(ratios, 2)
        for name in one.keys() & other.keys()
        if one[name].low > other[name].high or other[name].low > one[name].high
    ]
    for one in searches:
        print(f"{one['verdict']}: {one['chosen'] or 'the default'}")
        for name, ratio in one["to_default"].items():
            print(f"  {name}: {shown(ratio)}")
    print(f"contradictions: {', '.join(disjoint) or 'none'}")
    return {
        "answer": printed(answers[0], data),
        "searches": searches,
        "minutes": MINUTES,
        "contradictions": sorted({*disjoint}),
    }


def again(search: Search) -> Answer:
    """Return the answer of a search that was made by another process, from its records."""
    search.resume()
    return Answer(search)


def printed(answer: Answer, data: Path) -> list[str]:
    """Return the lines that the search printed, with short names for its folders."""
    tree = answer.search.tree
    text = answer_file(tree, answer.search.name).read_text()
    return text.replace(str(data), "DIR").replace(str(tree.root), "results").splitlines()


def found(answer: Answer) -> dict[str, Estimate]:
    """Return the ratios to the default of what was started, with intervals."""
    ranking = plan.ranking(answer.space, answer.known)
    ratios = {change(one, answer.default): answer.known.ratio(one, answer.default)
              for one in ranking}  # fmt: skip
    return {name: ratio for name, ratio in ratios.items() if ratio.n >= plan.STARTS}


def ddl(*words: object) -> None:
    """Run a command of this checkout."""
    done = subprocess.run([sys.executable, "-m", "ddl_tools.cli", *map(str, words)])
    if done.returncode:
        raise SystemExit(f"ddl {words[0]} ended with {done.returncode}")


if __name__ == "__main__":
    stored("recommend_choice", measure)
