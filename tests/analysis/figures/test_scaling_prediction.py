from pathlib import Path

import pytest

from ddl_core.analysis.figures import scaling_prediction
from ddl_core.errors import DataError

OF_THE_BOX = ("emulated, fitted", "emulated, held out")


def test_every_panel_has_a_band_a_peer_what_was_fitted_and_what_was_held_out() -> None:
    points = scaling_prediction.points()
    for name, panel in points.groupby("panel"):
        emulated = str(name).startswith("EMULATED")
        fitted, held = OF_THE_BOX if emulated else ("fitted", "stated")
        assert set(panel["source"]) <= {"model", "peer", fitted, held}
        assert {"model", "peer", held} <= set(panel["source"])
        most = panel[panel["source"] == fitted]["world_size"].max()  # none with the slowest links
        assert not most >= panel[panel["source"] == held]["world_size"].min()
        model = panel[panel["source"] == "model"]
        assert (model["low"] <= model["value"]).all()
        assert (model["value"] <= model["high"]).all()
        assert (model["world_size"].min(), model["world_size"].max()) == (1, 4096)
    assert len(scaling_prediction.draw(points).axes) == points["panel"].nunique() == 9


def test_without_its_table_it_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"python -m ddl_core\.scaling\.committed"):
        scaling_prediction.points(tmp_path)
