"""What others have published of their machines, as evidence for who has one like it."""

from dataclasses import replace
from functools import partial

import numpy as np

from ddl_core.scaling.advice.evidence import Evidence
from ddl_core.scaling.published_case import (
    Series,
    fit_series,
    machine_of,
    read_series,
    training_of,
)


def machines(model: str) -> list[str]:
    """Return the machines of which a series of this network is published.

    Raises
    ------
    DataError
        If the published numbers are missing.
    """
    return sorted({one.hardware for one in read_series() if one.model == model})


def evidence(model: str, machine: str | None) -> list[Evidence]:
    """Return what is published of a network on a machine; nothing is held out.

    Nobody's machine is one of them, so that they are only evidence for who asks for one by its
    name. Each series takes a second to fit.

    Raises
    ------
    DataError
        If the published numbers are missing.
    """
    found = [one for one in read_series() if (one.model, one.hardware) == (model, machine)]
    return [_evidence(one) for one in found]


def _evidence(series: Series) -> Evidence:
    whole = replace(series, fitted=np.full(len(series.ranks), True))
    fitted = fit_series(whole).fitted
    return Evidence(
        machine=series.hardware,
        strategy=series.strategy,
        loader=", ".join(filter(None, (series.loader, series.precision))),
        model=series.model,
        dataset="imagenet",
        gpus_per_node=series.gpus_per_node,
        sizes=tuple(int(count) for count in series.ranks),
        rests_on=(f"data/published: {series.name}",),
        admitted=fitted.admitted,
        noise=fitted.spread,
        training=training_of(series),
        built=partial(machine_of, whole),
    )
