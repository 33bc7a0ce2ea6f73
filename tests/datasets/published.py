"""A set as the published conversions of ImageNet are, written by another program than ours."""

from pathlib import Path

from tfrecord.writer import TFRecordWriter

SYNSETS = ("n01440764", "n01443537")


def write_published(folder: Path, images: dict[str, list[bytes]], shards: int = 2) -> None:
    """Deal out each split's images over shards; labels take turns."""
    folder.mkdir()
    for split, contents in images.items():
        for shard in range(shards):
            writer = TFRecordWriter(str(folder / f"{split}-{shard:05d}-of-{shards:05d}"))
            for number in range(shard, len(contents), shards):
                writer.write(features(split, number, contents[number]))
            writer.close()


def features(split: str, number: int, content: bytes) -> dict[str, tuple]:
    """Return the features of one record, in the form that the writer wants."""
    label = number % len(SYNSETS)
    return {
        "image/height": ([333], "int"),
        "image/width": ([500], "int"),
        "image/colorspace": ([b"RGB"], "byte"),
        "image/channels": ([3], "int"),
        "image/class/label": ([label + 1], "int"),
        "image/class/synset": ([SYNSETS[label].encode()], "byte"),
        "image/class/text": ([b"some words"], "byte"),
        "image/object/bbox/xmin": ([0.25, 0.5], "float"),
        "image/object/bbox/label": ([1, 1], "int"),
        "image/format": ([b"JPEG"], "byte"),
        "image/filename": ([f"{split}_{number:08d}.JPEG".encode()], "byte"),
        "image/encoded": ([content], "byte"),
    }
