from pathlib import Path

import pytest

from ddl_core.analysis.figures import scaling_prediction
from ddl_core.errors import DataError


def test_every_panel_has_a_band_a_peer_what_was_fitted_and_what_was_held_out() -> None:
    points = scaling_prediction.points()
    for _, panel in points.groupby("panel"):
        assert set(panel["source"]) == {"model", "peer", "fitted", "stated"}
        fitted = panel[panel["source"] == "fitted"]["world_size"]
        assert fitted.max() < panel[panel["source"] == "stated"]["world_size"].min()
        model = panel[panel["source"] == "model"]
        assert (model["low"] <= model["value"]).all()
        assert (model["value"] <= model["high"]).all()
        assert (model["world_size"].min(), model["world_size"].max()) == (1, 4096)
    assert len(scaling_prediction.draw(points).axes) == points["panel"].nunique() == 6


def test_without_its_table_it_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"python -m ddl_core\.scaling\.committed"):
        scaling_prediction.points(tmp_path)
