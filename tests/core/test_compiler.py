"""torch.compile: once for a whole run, and never quietly not at all."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch import nn

from ddl_core.config import RunSpec
from ddl_core.device import check_compiled, compile_network
from ddl_core.errors import LaunchError
from ddl_tools.processes import COMPILED, compiled
from ddl_tools.rank import recorder, worker
from ddl_tools.records.run import Attempt, RunRecord, write_record
from tests.launch.running import TINY


@pytest.fixture(autouse=True)
def graphs(monkeypatch) -> Iterator[list[torch.fx.GraphModule]]:
    """Return what was compiled; it is run as it is, since making machine code takes long."""
    from torch._dynamo.utils import counters  # takes a second, which collecting need not spend

    found = []

    def keep(graph, inputs):
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    torch._dynamo.reset()
    counters.clear()
    config = torch._dynamo.config
    changed = ("fail_on_recompile_limit_hit", "suppress_errors", "recompile_limit")
    with config.patch({name: getattr(config, name) for name in changed}):
        yield found
    torch._dynamo.reset()


# torch looks at the gradient of what a block gets, and hides that this warns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("fields", [{}, {"activation_checkpointing": True}], ids=str)
def test_nothing_is_compiled_after_the_first_epoch(graphs, tmp_path, monkeypatch, fields):
    few = {"image_size": 8, "local_batch_size": 3, "train_images": 54, "epochs": 3}
    few["eval_images"] = 5  # the last batch is smaller
    few["accumulation"] = 9  # more than the variants of one function that torch compiles
    spec = RunSpec(**{**TINY, **few, **fields}, compile=True)
    record = RunRecord.plan("test", spec)
    record.attempts.append(Attempt(started_utc=record.created_utc))
    write_record(tmp_path, record)
    after = []
    monkeypatch.setattr(recorder, "append_epoch", lambda *_: after.append(len(graphs)))
    with ExitStack() as leaving:
        worker.Run(tmp_path).execute(leaving)
    trained, evaluated, *later = after
    assert 0 < trained < evaluated
    assert later == [evaluated] * 4


@pytest.mark.parametrize("by_block", [False, True])
def test_a_network_of_layers_of_torch_alone_is_compiled(graphs, by_block):
    network = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Tanh())
    compile_network(network, by_block)
    network(torch.ones(1, 2))
    check_compiled()
    assert len(graphs) == 1


class Moody(nn.Module):
    """A network that is another one for each mood."""

    mood = ""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + len(self.mood)


def test_a_network_that_is_compiled_again_and_again_ends_the_run(graphs):
    torch._dynamo.reset()  # of another test it may know that moods differ
    network = Moody()
    compile_network(network)

    def called_in_many_moods():
        for number in range(20):
            network.mood = number * "!"
            network(torch.ones(2))

    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        called_in_many_moods()
    assert len(graphs) == torch._dynamo.config.recompile_limit


def test_a_network_that_is_not_compiled_ends_the_run():
    network = Moody()
    with torch._dynamo.config.patch(disable=True):  # as TORCHDYNAMO_DISABLE=1 does
        compile_network(network)
        network(torch.ones(2))
    with pytest.raises(LaunchError, match=r"compiled nothing.*TORCH_COMPILE_DISABLE"):
        check_compiled()


def test_what_is_compiled_is_kept_with_other_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("DDL_CACHES", str(tmp_path / "caches"))
    own = {COMPILED: str(tmp_path / "caches" / "torchinductor")}
    chosen = {COMPILED: str(tmp_path / "chosen" / "by the user")}
    of_torch = {COMPILED: f"{tempfile.gettempdir()}/torchinductor_me"}
    monkeypatch.delenv(COMPILED, raising=False)
    assert compiled() == own
    for given, want in ((chosen, chosen), (of_torch, own)):
        monkeypatch.setenv(COMPILED, given[COMPILED])
        assert compiled() == want
