"""What virtual workers cost: accumulating against a bare loop of the same micro-batches, one run.

    python benchmarks/accuracy_loop.py

As `loop_overhead.py`, with the network and micro-batch of studies/accuracy_laptop.yaml and 16
virtual workers. The bare loop makes an update after every micro-batch. Takes about half a minute.
Target: at least 0.95.
"""

import json
from pathlib import Path

from loop_overhead import compare

from ddl_core.records.provenance import host, provenance
from ddl_core.spec.study import Study

STUDY = Path(__file__).parent.parent / "studies" / "accuracy_laptop.yaml"


def main() -> None:
    """Measure, print, and store the result beside this file."""
    chosen = max(Study.load(STUDY).expand(), key=lambda spec: spec.accumulation)
    spec = chosen.model_copy(update={"loader": "synthetic", "optimizer": "sgd"})
    result = compare(spec)
    print(
        f"{spec.accumulation} virtual workers of {spec.local_batch_size} images: "
        f"{result['throughput_ratio_wall']:.3f} of the bare loop by wall clock, "
        f"{result['throughput_ratio_cpu']:.3f} by CPU time (median of {result['rounds']} rounds)"
    )
    target = Path(__file__).parent / "results" / "accuracy_loop.json"
    content = {"results": result, "provenance": provenance(), "system": host()}
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
