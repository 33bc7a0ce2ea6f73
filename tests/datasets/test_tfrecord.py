import pytest

from ddl_core.data.tfrecord import ENCODED, LABEL, Example
from ddl_core.errors import DataError
from ddl_tools.datasets.records import example, frame, read_lengths, read_records


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(frame(b"one") + frame(b"") + frame(b"three"))
    return path


def test_records_their_places_and_a_changed_byte(file):
    found = [(0, b"one", True), (19, b"", True), (35, b"three", True)]
    assert [tuple(record) for record in read_records(file)] == found
    assert list(read_lengths(file)) == [(0, 19), (19, 16), (35, 21)]
    content = bytearray(file.read_bytes())
    content[13] ^= 1
    file.write_bytes(content)
    assert [record.intact for record in read_records(file)] == [False, True, True]


def test_the_format_is_that_of_the_tfrecord_package_and_stands_beside_it():
    theirs = pytest.importorskip("tfrecord.example_pb2").Example()  # as TensorFlow registers it
    theirs.features.feature[ENCODED].bytes_list.value.append(b"\0\xff")
    theirs.features.feature[LABEL].int64_list.value.append(300)
    ours = example({ENCODED: b"\0\xff", LABEL: 300})
    assert theirs.SerializeToString(deterministic=True) == ours
    writer = pytest.importorskip("tfrecord.writer").TFRecordWriter
    assert writer.masked_crc(ours) == frame(ours)[-4:]
    theirs.features.feature["image/object/bbox/xmin"].float_list.value.append(0.5)
    assert Example(theirs.SerializeToString()).label() == 299


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "record 2: the file ends 1 bytes too early"),
        (lambda content: content[:40], "record 2: cut off"),
        (lambda content: b"\1" + content[1:], "record 0: its length does not fit its checksum"),
        (lambda content: b"\xff\xd8 a picture of no fame", "record 0: its length .* no TFRecord"),
    ],
)
def test_damage_of_the_file_is_an_error(file, damage, message):
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=f"{file} {message}"):
        list(read_records(file))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xff\xff", "no Example"),
        (b"", f"no feature {LABEL}"),
        (example({LABEL: b"1"}), f"{LABEL} is b'1'"),  # of another type
        (example({LABEL: 0}), f"{LABEL} is 0; labels count from 1"),
        (example({LABEL: -1}), f"{LABEL} is -1"),
    ],
)
def test_a_record_without_a_label(data, message):
    with pytest.raises(ValueError, match=message):
        Example(data).label()
