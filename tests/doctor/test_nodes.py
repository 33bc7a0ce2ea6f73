"""The site's file against what `sinfo` prints, each wrong field by itself."""

from pathlib import Path
from typing import Any

import pytest

from ddl_core.doctor import login_node
from ddl_core.doctor.finding import Finding
from ddl_core.launch.slurm.script import Options
from ddl_core.launch.slurm.site import Site
from ddl_core.spec.run import RunSpec

LISTING = """\
batch*|up|1-00:00:00|10|96|250000|(null)|cpu
gpu|up|2:00:00|4|48|512000|gpu:a100:4(S:0-1)|gpu,ib
gpu|up|2:00:00|2|48|1024000|gpu:h100:4,tmp:1|gpu,ib,big
old|down|infinite|1|8|16000|gpu:2|(null)
"""
KINDS = login_node.parse_nodes(LISTING)
GPU = {"gpus_per_node": 4, "gpu_request": "gres", "partition": "gpu", "cpus_per_rank": 12}


def found(
    options: Options | None = None, nodes_asked: int = 2, **fields: Any
) -> dict[str, Finding]:
    site = Site.model_validate({"description": "made", **GPU, **fields})
    spec = RunSpec.parse(
        {"strategy": "ddp", "nodes": nodes_asked, "gpus_per_node": site.gpus_per_node or 1}
    )
    return {
        one.subject: one
        for one in login_node.examine_nodes(site, options or Options(), spec, KINDS)
    }


def test_the_listing_is_read() -> None:
    assert len(KINDS) == 4
    assert KINDS[0].default
    assert KINDS[0].limit_s == 86400
    assert KINDS[1].limit_s == 7200
    assert KINDS[2].gpus == (("h100", 4),)
    assert KINDS[3].limit_s == float("inf")
    assert KINDS[3].gpus == (("", 2),)


def test_a_site_that_fits() -> None:
    assert {one.state for one in found().values()} == {"ok"}
    assert found()["nodes"].detail == "2 of 6 such nodes"


@pytest.mark.parametrize(
    ("fields", "subject", "words"),
    [
        ({"partition": "boost"}, "partition", "'boost' is not known"),
        ({"partition": "old"}, "partition", "takes no jobs"),
        ({"time": "03:00:00"}, "time", "10800 s asked for, but 'gpu' has a limit of 7200 s"),
        ({"cpus_per_rank": 16}, "cpus", "64 cores a node asked for, but 'gpu' has nodes of 48"),
        ({"gpus_per_node": 8, "cpus_per_rank": 1}, "gpus per node", "8 asked for"),
        ({"gpu_request": "gres_typed", "gpu_type": "v100"}, "gpus per node", "has 4 a100, 4 h100"),
        ({"constraint": "gpu&nvme"}, "constraint", "gpu&nvme asked for"),
        ({"memory": "2T"}, "memory of a node", "2097152 MB asked for"),
        ({"account_needed": True}, "request", "--account PROJECT"),
    ],
)
def test_a_field_that_does_not_fit_is_named(fields, subject, words) -> None:
    one = found(**fields)[subject]
    assert one.state == "bad"
    assert words in one.detail
    assert one.remedy


def test_all_wishes_must_be_met_by_the_same_nodes() -> None:
    typed = {"gpu_request": "gres_typed", "gpu_type": "a100"}
    assert found(constraint="big")["nodes"].detail == "2 of 2 such nodes"
    assert found(constraint="big", **typed)["gpus per node"].state == "bad"
    assert found(nodes_asked=5, **typed)["nodes"].state == "bad"


def test_without_a_partition_the_default_counts() -> None:
    assert found(partition=None, gpus_per_node=0, gpu_request="none")["partition"].detail == "batch"
    assert found(partition=None)["gpus per node"].state == "bad"
    assert found(Options(partition="gpu"), partition=None)["partition"].detail == "gpu"


def test_the_repositorys_sites_can_all_be_examined() -> None:
    from ddl_core.launch.slurm.site import find_site, known_sites

    for name in known_sites():
        site = find_site(name)
        spec = RunSpec.parse({"strategy": "ddp", "gpus_per_node": site.gpus_per_node or 1})
        assert login_node.examine_nodes(site, Options(account="a"), spec, KINDS), Path(name)
