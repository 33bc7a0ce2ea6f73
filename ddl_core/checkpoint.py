"""Save and load the state a run continues from: whole or not at all."""

import hashlib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import nn

from ddl_core.errors import RecordError
from ddl_core.files import cannot_write, replacing
from ddl_core.step import TrainState
from ddl_core.strategies.base import Strategy


def save(path: Path, state: TrainState, epochs_done: int) -> None:
    """Replace the checkpoint at `path`; a crash leaves the old one. A collective; rank 0 writes."""
    full = state.strategy.full_state(state.network, state.optimizer)
    if state.strategy.rank != 0:
        return
    saved = {
        "run_id": state.spec.run_id,
        "epochs_done": epochs_done,
        **full,
        "scaler": state.scaler.state_dict(),
    }
    part = path.with_name(f".{path.name}.tmp")  # the next start overwrites what a killed one left
    try:
        with replacing(path, part=part) as file:
            torch.save(saved, file)
    except OSError as error:
        raise cannot_write(path, error) from error
    except RuntimeError as error:  # torch reports a full disk in its own words
        raise RecordError(
            f"cannot write the checkpoint {path} (disk full?): {str(error).splitlines()[0]}"
        ) from error


def load(path: Path, state: TrainState) -> int:
    """Continue from `path` if it is there; return the number of epochs already done."""
    if not path.exists():
        return 0
    try:
        with ZipFile(path) as archive:  # torch.load compares no sums
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} is damaged")
        # In main memory: a GPU may have room for a part only.
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RecordError(
            f"cannot read the checkpoint {path} ({error}); delete it to start the run again"
        ) from error
    if saved["run_id"] != state.spec.run_id:
        raise RecordError(
            f"the checkpoint {path} belongs to run {saved['run_id']}",
            remedy=f"delete it to start {state.spec.run_id} from its beginning",
        )
    state.strategy.load_full_state(state.network, state.optimizer, saved)
    state.scaler.load_state_dict(saved["scaler"])
    return int(saved["epochs_done"])


def weights_sha256(network: nn.Module, strategy: Strategy | None = None) -> str:
    """Return a hash over all parameters and buffers, by name and bytes.

    A collective with a `strategy` that shards weights: the first rank of each copy gathers and
    hashes it, for all ranks of that copy.
    """
    weights = strategy.full_weights(network) if strategy else network.state_dict()
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        flat = tensor.detach().contiguous().cpu().flatten()
        digest.update(flat.view(torch.uint8).numpy())
    if strategy is None or not strategy.is_sharded:
        return digest.hexdigest()
    copy, place = divmod(strategy.rank, strategy.world_size // strategy.copies)
    found = torch.zeros(strategy.copies, digest.digest_size, dtype=torch.int64)
    if place == 0:
        found[copy] = torch.tensor(list(digest.digest()))
    found = strategy.all_reduce(found.to(strategy.device))
    return bytes(found[copy].tolist()).hex()
