"""What virtual workers cost: accumulating against a bare loop of the same micro-batches.

    python -m benchmarks.accuracy_loop

As `loop_overhead.py`, with the network and micro-batch of studies/accuracy_laptop.yaml and its most
virtual workers: the bare loop makes one update after as many micro-batches.
Target: at least 0.95 of its throughput.
"""

from pathlib import Path
from typing import Any

from benchmarks.interleaved import ratio, say, seconds, stored
from benchmarks.loop_overhead import BARE, LOOP, windows
from ddl_tools.study import Study

STUDY = Path(__file__).parent.parent / "studies" / "accuracy_laptop.yaml"
TARGET = 0.95
MINUTES = 3


def measure() -> dict[str, Any]:
    """Measure and print."""
    chosen = max(Study.load(STUDY).expand(), key=lambda spec: spec.accumulation)
    spec = chosen.model_copy(update={"loader": "synthetic", "optimizer": "sgd"})
    took = windows(spec, MINUTES)
    row = ratio(took, LOOP, BARE, TARGET)
    print(f"{spec.accumulation} virtual workers of {spec.local_batch_size} images: {say(row)}")
    return {
        "ratios": [row],
        "virtual_workers": spec.accumulation,
        "windows_s": seconds(took),
    }


if __name__ == "__main__":
    stored("accuracy_loop", measure)
