"""Which runs may be pooled: a setting is everything that an arm does not name and speed depends on.

An arm is strategy x loader x format of the data x model. Runs of two settings never share a median
or a line. The format is the arm's: the paper's loaders read different ones and stand in one panel.
"""

import pandas as pd

from ddl_core.spec.run import KNOB_OWNERS, RunSpec

ARM = ["strategy", "loader", "data_format", "model"]

# Fields that change neither the work of a training step nor its speed. All others, and every field
# that RunSpec may get later, divide settings: runs are never pooled by oversight.
_FREE = {
    *ARM,
    "nodes",
    "gpus_per_node",
    "device",
    "eval_images",
    "epochs",
    "momentum",
    "weight_decay",
    "schedule",
    "base_lr",
    "warmup_epochs",
    "label_smoothing",
    "eval_every",
    "checkpoint_every",
    "warmup_steps",
    "seed",
    "repeat",
}
_WORK = [name for name in RunSpec.model_fields if name not in _FREE]
_MACHINE = ["device_used", "accelerator", "machine", "cpu_cores"]
_KEY = ["study", *_WORK, *_MACHINE, "method_version"]
_SHOWN = {"image_size", "local_batch_size", "precision", "channels_last", "compile"}
# What a setting's name tells only where its study has several.
_NAMED = [name for name in (*_WORK, "hardware", "method_version") if name not in _SHOWN]

# The same again for the two halves of a training: everything divides them but what is listed here.
# A loader does not know what is done with its batches. How many images an epoch has may differ:
# loading is faster than training, and needs more images for a window as long.
_NOT_OF_LOADING = {
    *(name for name in _WORK if name.startswith(KNOB_OWNERS)),
    "work",
    "train_images",
    "classes",
    "accumulation",
    "precision",
    "channels_last",
    "compile",
    "optimizer",
}
# Training on data that are free does not depend on how data would be read.
_NOT_OF_TRAINING = {
    "dataset",
    "train_images",
    "loader_workers",
    "loader_prefetch",
    "pin_memory",
    "persistent_workers",
}
_PLACE = ["world_size", "hardware"]
LOADING = [name for name in _KEY if name not in _NOT_OF_LOADING]
LOADING += ["loader", "data_format", *_PLACE]
TRAINING = [name for name in _KEY if name not in _NOT_OF_TRAINING]
TRAINING += ["strategy", "model", *_PLACE]


def with_settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` with the columns setting (a short text), hardware and on_cpu.

    A run that failed before it knew its machine gets that of its study, if the study has only one.
    """
    table = runs.copy()
    _fill_machine(table)
    table["hardware"] = [_hardware(row) for row in table[_MACHINE].to_dict("records")]
    table["hardware"] = table["hardware"].astype("string")
    table["on_cpu"] = table["accelerator"].isna()
    numbers = table.groupby(_KEY, dropna=False, sort=False).ngroup()
    names: dict[int, str] = {}
    for _, study in table.groupby("study"):
        settings = study.assign(number=numbers).drop_duplicates("number")
        varying = [name for name in _NAMED if settings[name].nunique(dropna=False) > 1]
        for row in settings.to_dict("records"):
            names[row["number"]] = _name(row, varying)
    return table.assign(setting=numbers.map(names).astype("string"))


def _fill_machine(table: pd.DataFrame) -> None:
    for _, study in table.groupby("study"):
        unknown = study["machine"].isna()
        known = study.loc[~unknown, _MACHINE].drop_duplicates()
        if len(known) == 1:
            for column in _MACHINE:
                table.loc[study.index[unknown], column] = known[column].iloc[0]


def _name(row: dict, varying: list[str]) -> str:
    parts = [f"{row['image_size']} px", f"batch {row['local_batch_size']}", str(row["precision"])]
    parts += ["channels_last"] if row["channels_last"] else []
    parts += ["compiled"] if row["compile"] else []
    parts += [f"{name}={row[name]}" for name in varying]
    return f"{row['study']}: {', '.join(parts)}"


def _hardware(row: dict) -> str:
    if not pd.isna(row["accelerator"]):
        return str(row["accelerator"])
    if pd.isna(row["machine"]):
        return "unknown machine"
    model = str(row["machine"]).replace("(R)", "").replace("(TM)", "")
    return f"{model}, {row['cpu_cores']} cores, no GPU"
