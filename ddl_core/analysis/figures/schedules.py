"""The learning rate over epochs, as the paper trained on 1024 GPUs."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ddl_core.analysis.paper import Paper
from ddl_core.analysis.plot import marks, style
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.spec.run import RunSpec
from ddl_core.spec.schedules import learning_rate


def points(paper: Paper) -> pd.DataFrame:
    """Return the learning rate over epochs as the paper trained on 1024 GPUs (its Fig. 8a).

    Four values an epoch, each of the first update that comes then.
    """
    names = style.listed(paper.accuracy["schedule"], style.SCHEDULE_NAMES)
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


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the learning rate over epochs of the paper's schedules (its Fig. 8a)."""
    names = list(points["schedule"].unique())
    looks = {name: {"color": style.way_look("sgd", name, names)["color"]} for name in names}
    titles = {style.schedule_name(name): look for name, look in looks.items()}
    figure, (ax,) = frame(
        "Which learning rate does each schedule give to each epoch?",
        ["the paper's training on 1024 GPUs"],
        [2.4],
        marks.handles(titles, linestyle="solid"),
        [
            "No run: computed by the code that training uses, with the paper's settings. Question "
            "of the paper's Fig. 8a. 0.025 x 1024 at the peak, 5 epochs of linear warm-up, a tenth "
            "at epochs 30, 60 and 80 (step), eq. 1 with a minimum of 0 (cosine), 0.95 an epoch "
            "(exponential). The logarithmic axis shows what Fig. 8a's linear one hides at the end.",
        ],
    )
    options = marks.told_apart("schedule", looks) | {"dashes": False}
    sns.lineplot(points, x="epoch", y="value", estimator=None, ax=ax, **options)
    ax.set(yscale="log", ylabel="learning rate")
    return figure
