"""The learning rate of the schedules of the paper."""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ddl_core.config import RunSpec
from ddl_core.schedules import learning_rate
from ddl_tools.analysis.paper import Paper
from ddl_tools.analysis.plot import style
from ddl_tools.analysis.plot.canvas import frame, styled
from ddl_tools.analysis.plot.labels import Name, name_curves
from ddl_tools.analysis.question import OF_NO_RUN, Question, Tables, question
from ddl_tools.names import phrase

_HIGH = 2.4  # inches of the axes


def schedule_points(paper: Paper) -> pd.DataFrame:
    """Return the learning rate over epochs as the paper trained on 1024 GPUs (its Fig. 8a).

    Four values an epoch, each of the first update that comes then.
    """
    names = style.schedules(paper.accuracy["schedule"])
    rows = []
    for name in names:
        spec = RunSpec.parse(
            {"strategy": "ddp", "nodes": 256, "gpus_per_node": 4, "schedule": name}
        )
        per_epoch = 1_281_167 // spec.global_batch_size * spec.global_batch_size
        for quarter in range(4 * spec.epochs):
            step = quarter * (per_epoch // spec.global_batch_size) // 4
            rate = learning_rate(spec, step * spec.global_batch_size, per_epoch)
            rows.append(("sgd", name, step * spec.global_batch_size / per_epoch, rate))
    return pd.DataFrame(rows, columns=["optimizer", "schedule", "epoch", "value"])


@question("schedules")
class Schedules(Question):
    """The learning rate of each schedule over the epochs."""

    asks = "Which learning rate does each schedule give?"
    notebook = "15_schedules"
    needs = OF_NO_RUN
    columns = "epoch step cosine exponential"
    text = """
- All schedules peak at {{ "%g" | format(peak) }} and end at {{ ends | span("{:.1g}") }}.
{% for row in rows %}
- Rate after epoch {{ row.epoch }}: step {{ row.step | number }}, cosine {{ row.cosine | number }},
exponential {{ row.exponential | number }}.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return schedule_points(tables.paper)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the learning rate over epochs of the paper's schedules (its Fig. 8a)."""
        names = list(points["schedule"].unique())
        colours = {name: style.way_look("sgd", name, names)["color"] for name in names}
        figure, (ax,) = frame(
            self.title(points),
            ["the paper's training on 1024 GPUs"],
            [_HIGH],
            [],
            [
                "No run: computed by the code that training uses, with the paper's settings "
                "(Fig. 8a). 0.025 x 1024 at the peak, 5 epochs of linear warm-up.",
            ],
        )
        sns.lineplot(
            points,
            x="epoch",
            y="value",
            hue="schedule",
            palette=colours,
            estimator=None,
            legend=False,
            ax=ax,
        )
        ax.set(yscale="log", xlabel="epoch", ylabel="learning rate")
        ax.yaxis.set_major_formatter("{x:g}")
        ends = points.groupby("schedule").last()
        name_curves(
            ax,
            [
                Name.of(ends.loc[one, ["epoch", "value"]], phrase("schedule", one), hue)
                for one, hue in colours.items()
            ],
            _HIGH,
        )
        return figure

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return the rates of the schedules at every tenth epoch."""
        wide = points.pivot(index="epoch", columns="schedule", values="value").reset_index()
        return wide[(wide["epoch"] > 0) & (wide["epoch"] % 10 == 0)].astype({"epoch": int})

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        ends = points.groupby("schedule")["value"].last()
        return super().facts(points) | {"peak": points["value"].max(), "ends": ends}
