"""Columns of the points of figures: a name has one type in all of them."""

WHO = "study framework strategy loader data_format model"
VALUE = "n windows failed value low high"
ORIGIN = "hardware on_cpu commit"

_INTEGERS = (
    "n windows pairs failed world_size world_size_min base_world_size "
    "local_batch_size global_batch_size loader_workers updates epochs epoch repeat reached "
    "unfaithful diverged loading_n training_n own_load growth_from"
)
_TEXTS = (
    "panel source label question line repeats start_ratios base base_rule decision cpu_decision "
    "growth_decision "
    "common unsaid left_out rounds_left_out bound approx statement printed place contradiction "
    "note dataset optimizer schedule run_id cause limit hardware commit " + WHO
)
_TYPES = {
    **dict.fromkeys(_INTEGERS.split(), "Int64"),
    **dict.fromkeys(_TEXTS.split(), "string"),
    **dict.fromkeys(("on_cpu", "second_start"), "boolean"),
}


def typed(*names: str, **others: str) -> dict[str, str]:
    """Return the type of each column: names separated by spaces, what is not listed is a number.

    `others` are the types of columns that differ from those of this name elsewhere.
    """
    return {name: others.get(name, _TYPES.get(name, "float64")) for name in " ".join(names).split()}
