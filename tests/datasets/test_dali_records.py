"""DALI's own reader finds in our files what we put there."""

import os

import numpy as np
import pytest

from ddl_core.data.tfrecord import ENCODED, LABEL, index_path, list_records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dali():
    """DALI without a GPU; where the tests are to be complete, it must be installed."""
    try:
        import nvidia.dali.fn
        import nvidia.dali.tfrecord
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("nvidia.dali is not installed")
        pytest.skip("nvidia.dali is not installed")
    return nvidia.dali


@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("val", "validation")])
def test_dali_reads_the_same_bytes_and_labels(dali, finished_records, split, prefix):
    shards = sorted(finished_records.glob(f"{prefix}-*-of-*"))
    text, number = dali.tfrecord.string, dali.tfrecord.int64

    @dali.pipeline_def(batch_size=8, num_threads=1, device_id=None)
    def pipeline():
        features = dali.fn.readers.tfrecord(
            path=[str(path) for path in shards],
            index_path=[str(index_path(path)) for path in shards],
            features={
                ENCODED: dali.tfrecord.FixedLenFeature((), text, ""),
                LABEL: dali.tfrecord.FixedLenFeature([1], number, -1),
            },
            name="records",
        )
        return features[ENCODED], features[LABEL]

    made = pipeline()
    made.build()
    records = list_records(finished_records, split)
    assert made.epoch_size("records") == len(records)
    found = []
    for _ in range(len(records) // 8):
        images, labels = made.run()
        for place in range(8):
            content = np.asarray(images.at(place)).tobytes()
            found.append((content, int(labels.at(place)[0]) - 1))
    assert found == [records.read(index) for index in range(len(records))]
