from pathlib import Path

import pytest

from ddl_core.analysis.figures import scaling_bands
from ddl_core.errors import DataError


def test_every_panel_has_a_band_from_1_to_4096_and_its_points() -> None:
    points = scaling_bands.points()
    for name, panel in points.groupby("panel"):
        model = panel[panel["source"] == "model"]
        assert (model["world_size"].min(), model["world_size"].max()) == (1, 4096)
        assert (model["low"] <= model["value"]).all()
        assert (model["value"] <= model["high"]).all()
        others = set(panel["source"]) - {"model"}
        measured = "measured" if "two CPU cores" in str(name) else "stated"
        assert others == {"emulated" if str(name).startswith("EMULATED") else measured}
    assert len(scaling_bands.draw(points).axes) == points["panel"].nunique() == 8


def test_bands_hold_what_was_measured() -> None:
    points = scaling_bands.points()
    model = points[points["source"] == "model"].set_index(["panel", "world_size"])
    for row in points[points["source"].isin(["measured", "emulated"])].itertuples():
        band = model.loc[(row.panel, row.world_size)]
        assert band["low"] <= row.value <= band["high"]


def test_without_its_table_it_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"python -m ddl_core\.scaling\.advice\.committed"):
        scaling_bands.points(tmp_path)
