"""One look for everything that has a name."""

import itertools

import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from ddl_core.registry import LOADERS, MODELS, STRATEGIES
from ddl_tools.analysis.plot import style
from tests.analysis.drawn import PAPER


def test_every_name_in_the_paper_has_a_look() -> None:
    assert set(PAPER.efficiency["strategy"]) <= STRATEGIES.keys()
    assert set(PAPER.efficiency["loader"]) <= {*LOADERS, "dali"}
    assert set(PAPER.efficiency["model"]) <= MODELS.keys()


def test_formats_are_told_only_where_something_else_than_folders_is_read() -> None:
    folders = pd.DataFrame({"data_format": pd.array(["folder", None], dtype="string")})
    both = pd.DataFrame({"data_format": ["folder", "tfrecord"]})
    assert [style.formats_differ(table) for table in (folders, both)] == [False, True]
    assert style.loader_name("native", "folder", formats=False) == "native"
    assert style.loader_name("native", "folder", formats=True) == "native, folders"
    assert style.loader_name("dali_cpu", "tfrecord", formats=True) == "DALI (CPU), TFRecord"
    assert style.loader_name("synthetic", "folder", formats=True) == "synthetic"


def test_colours_differ_in_grey() -> None:
    """Lightness L* of CIE 1976: steps of ten are told apart side by side.

    Of PyTorch's strategies: seven that differ so, and are safe for colour-blind readers, are not
    to be had. Those of other libraries differ from them in grey by their markers alone.
    """
    ours = [name for name, entry in STRATEGIES.items() if "torch" in entry.frameworks]
    lightness = sorted(_lightness(style.STRATEGY_COLOURS[name]) for name in ours)
    assert min(high - low for low, high in itertools.pairwise(lightness)) >= 10


def _lightness(hue: str) -> float:
    linear = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in to_rgb(hue)
    ]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def frameworks(*pairs: tuple[str, str]) -> pd.Series:
    table = pd.DataFrame(list(pairs), columns=["framework", "strategy"], dtype="string")
    return style.with_framework_strategy(table)["framework_strategy"]


def test_a_library_is_named_where_one_is_not_torch() -> None:
    alone = frameworks(("torch", "horovod"), ("torch", "ddp"))
    assert [style.strategy_name(name) for name in alone] == ["Horovod", "PyTorch-DDP"]
    several = frameworks(("torch", "horovod"), ("torch", "ddp"), ("tensorflow", "horovod"))
    names = ["PyTorch, Horovod", "PyTorch-DDP", "TensorFlow, Horovod"]
    assert [style.strategy_name(name) for name in several] == names


def test_every_framework_has_a_look_of_its_own() -> None:
    pairs = [(library, name) for name, entry in STRATEGIES.items() for library in entry.frameworks]
    looks = style.strategy_looks(frameworks(*pairs))
    assert len({tuple(look.values()) for look in looks.values()}) == len(pairs)
    alone = style.strategy_looks(pd.Series(["ddp", "horovod"]))
    assert alone["horovod"] == looks["torch horovod"], "the same in every figure"
    assert looks["tensorflow horovod"]["marker"] == looks["torch horovod"]["marker"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7.04, "7.04"),
        (16.18, "16.2"),
        (940.4, "940"),
        (2463.8, "2.5k"),
        (576525, "580k"),
        (1e6, "1M"),
    ],
)
def test_compact_numbers(value: float, shown: str) -> None:
    assert style.compact(value) == shown
