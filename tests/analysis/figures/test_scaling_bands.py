import numpy as np

from ddl_tools.analysis.answers import ANSWERS
from ddl_tools.analysis.figures import scaling_bands
from ddl_tools.analysis.plot.canvas import title_of


def test_no_law_is_drawn_further_than_four_times_beyond_its_values() -> None:
    points = scaling_bands.points()
    for name, panel in points.groupby("panel"):
        values = panel[panel["source"].isin(["measured", "stated", "emulated"])]
        drawn = panel[panel["source"].isin(["law", "calculated"])]
        assert len(values)
        assert drawn["world_size"].max() <= 4 * values["world_size"].max()
        assert str(name).startswith("EMULATED") == ("emulated" in set(panel["source"]))
    assert len(scaling_bands.draw(points).axes) == points["panel"].nunique() == 8


def test_bands_hold_the_values_that_they_are_fitted_to() -> None:
    points = scaling_bands.points()
    law = points[points["source"] == "law"].set_index(["panel", "world_size"])
    assert (law["low"] <= law["value"]).all()
    assert (law["value"] <= law["high"]).all()
    values = points[points["source"].isin(["measured", "stated"]) & (points["bound"] == "value")]
    bands = law.loc[list(zip(values["panel"], values["world_size"], strict=True))]
    inside = (bands["low"].to_numpy() <= values["value"]) & (
        values["value"] <= bands["high"].to_numpy()
    )
    assert inside[values["source"] == "stated"].all()
    assert inside.mean() > 0.8


def test_values_of_the_fit_are_no_test_of_a_prediction() -> None:
    points = scaling_bands.points()
    fitted = points["source"].isin(["measured", "stated"]) & (points["bound"] == "value")
    values = f"{fitted.sum()} values"
    assert fitted.sum() > 15
    title = title_of(scaling_bands.draw(points))
    assert f"{values} that they are fitted to; no other value tests them" in title
    none, *laws = ANSWERS["scaling_bands"].sentences(points)
    assert f"fitted to all {values}" in none
    assert len(laws) == 2
    assert all("fitted to 1 value and 1 bound" in law for law in laws)


def test_a_law_of_two_cores_ends_with_them() -> None:
    points = scaling_bands.points()
    own = points[points["quantity"] == "throughput"]
    assert set(own.loc[own["source"] == "law", "world_size"]) == {1, 2}


def test_calculated_efficiency_stands_beside_the_emulated_one() -> None:
    points = scaling_bands.points().set_index(["panel", "world_size", "source"])["value"]
    emulated = points.xs("emulated", level="source")
    calculated = points.xs("calculated", level="source").loc[emulated.index]
    assert np.abs(calculated / emulated - 1).max() < 0.06


def test_the_legend_tells_that_some_values_follow_from_stated_times() -> None:
    """The paper states no 0.91, which follows from 13 h and 200 s (D04)."""
    points = scaling_bands.points()
    assert points.loc[points["source"] == "stated", "value"].eq(0.9141).any()
    names = [text.get_text() for text in scaling_bands.draw(points).legends[0].get_texts()]
    assert "stated, or from stated times" in names
