import pytest

from ddl_core.data.tfrecord import ENCODED, LABEL, Example, absent, shard_name, shards_in
from ddl_core.errors import DataError
from ddl_tools.datasets.records import example, frame, read_lengths, read_records


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(frame(b"one") + frame(b"") + frame(b"three"))
    return path


def test_records_and_their_places(file):
    assert list(read_lengths(file)) == [(0, 19), (19, 16), (35, 21)]
    assert [tuple(record) for record in read_records(file)] == [
        (0, b"one", True),
        (19, b"", True),
        (35, b"three", True),
    ]


def test_the_format_is_that_of_the_tfrecord_package(tmp_path, file):
    writer = pytest.importorskip("tfrecord.writer").TFRecordWriter
    ours = frame(example({ENCODED: b"\0\xff" * 500, LABEL: 300}))
    other = writer(str(tmp_path / "other"))
    other.write({ENCODED: ([b"\0\xff" * 500], "byte"), LABEL: ([300], "int")})
    other.close()
    (theirs,) = read_records(tmp_path / "other")
    assert theirs.intact
    assert writer.masked_crc(ours[12:-4]) == ours[-4:]
    for data in (theirs.data, ours[12:-4]):
        assert (Example(data).first(ENCODED), Example(data).label()) == (b"\0\xff" * 500, 299)


def test_the_message_is_that_of_the_format_and_stands_beside_another_of_its_name():
    theirs = pytest.importorskip("tfrecord.example_pb2").Example()  # as TensorFlow registers it
    theirs.features.feature[ENCODED].bytes_list.value.append(b"\0\xff")
    theirs.features.feature[LABEL].int64_list.value.append(300)
    ours = example({ENCODED: b"\0\xff", LABEL: 300})
    assert theirs.SerializeToString(deterministic=True) == ours
    theirs.features.feature["image/object/bbox/xmin"].float_list.value.append(0.5)
    assert Example(theirs.SerializeToString()).label() == 299


def test_a_changed_byte_of_the_data_is_seen_and_the_rest_is_read(file):
    content = bytearray(file.read_bytes())
    content[13] ^= 1
    file.write_bytes(content)
    assert [record.intact for record in read_records(file)] == [False, True, True]


@pytest.mark.parametrize("read", [read_lengths, read_records])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "record 2: the file ends 1 bytes too early"),
        (lambda content: content[:40], "record 2: cut off"),
        (lambda content: b"\1" + content[1:], "record 0: its length does not fit its checksum"),
        (lambda content: b"\xff\xd8 a picture of no fame", "record 0: its length .* no TFRecord"),
    ],
)
def test_damage_of_the_file_is_an_error(file, read, damage, message):
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=f"{file} {message}"):
        list(read(file))


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


def test_names_of_a_set(tmp_path):
    names = [shard_name("val", number, 3) for number in range(3)]
    for name in (*names[:2], "train-00000-of-00001", "train-00000-of-00001.idx", ".train-0.part"):
        (tmp_path / name).touch()
    assert shards_in(tmp_path, "val") == names[:2]
    assert absent("val", names[:2]) == ["validation-00002-of-00003"]
    assert shards_in(tmp_path, "train") == ["train-00000-of-00001"]
    with pytest.raises(DataError, match="different sets in one folder"):
        absent("val", [names[0], shard_name("val", 0, 4)])
    with pytest.raises(DataError, match=r"cannot read .*nowhere: No such file"):
        shards_in(tmp_path / "nowhere", "val")
