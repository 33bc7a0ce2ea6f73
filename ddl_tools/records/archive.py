"""One zip file with the records of studies, to be published on another machine.

The file has a folder for each study, with ``study.json``, ``runs.jsonl`` (a line per run),
``epochs.jsonl`` (a line per epoch, which begins with its ``run_id``) and ``profiles.jsonl`` (a line
per profile). It may come from anybody: no name in it becomes a path before it is checked.
"""

import io
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ddl_core.errors import DDLError, RecordError
from ddl_core.files import describe, require_file, shown, some
from ddl_tools.records.damage import verify
from ddl_tools.records.ledger import project_study, read_study, write_study
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.publish import Published, completed_runs, publish_all
from ddl_tools.records.run import UnknownNameError, parse_record
from ddl_tools.records.storage import write_atomically
from ddl_tools.study import Study, is_name

MOST_BYTES = 10_000_000  # of the file
MOST_UNPACKED = 100_000_000  # bytes of all members
MOST_MEMBERS = 100
LONGEST_LINE = 1_000_000  # bytes

STUDY, RUNS, EPOCHS, PROFILES = "study.json", "runs.jsonl", "epochs.jsonl", "profiles.jsonl"
REPORT = "report.md"  # for readers of the file; not published
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # time of all members: the same records give the same bytes

Members = Mapping[str, zipfile.ZipInfo]  # of one study, by file name


def pack(tree: Tree, studies: Sequence[str], path: Path, report: str = "") -> int:
    """Write the completed runs of `studies` to a zip file; return their number.

    `RecordError` if a study has none, a record is damaged, or the file would be too large.
    """
    members: dict[str, bytes] = {}
    runs = 0
    for study in sorted(studies):
        folders, _ = completed_runs(study, tree)
        if not folders:
            raise RecordError(f"study {study!r} has no completed run in {tree.runs}")
        runs += len(folders)
        files: dict[str, list[bytes]] = {RUNS: [], EPOCHS: [], PROFILES: []}
        files[STUDY] = [_definition(study, tree)]
        for run in map(RunFiles, folders):
            files[RUNS].append(_line(_object(str(run.record), run.record.read_bytes())))
            for line in run.epochs.read_bytes().splitlines():
                row = _object(str(run.epochs), line)
                files[EPOCHS].append(_line({"run_id": run.directory.name, **row}))
            if run.profile.exists():
                profile = _object(str(run.profile), run.profile.read_bytes())
                files[PROFILES].append(_line(profile))
        joined = {f"{study}/{name}": b"".join(lines) for name, lines in files.items()}
        members |= {name: content for name, content in joined.items() if content}
    members |= {REPORT: report.encode()} if report else {}
    content = _zipped(members)
    unpacked = sum(map(len, members.values()))
    if len(content) > MOST_BYTES or unpacked > MOST_UNPACKED or len(members) > MOST_MEMBERS:
        raise RecordError(
            f"the records of {some(studies)} do not fit into one file: {_mb(len(content))} in "
            f"{len(members)} members, {_mb(unpacked)} unpacked; a file holds at most "
            f"{_mb(MOST_BYTES)}, {MOST_MEMBERS} members and {_mb(MOST_UNPACKED)} unpacked. "
            "Name fewer studies"
        )
    write_atomically(path, content)
    return runs


def _definition(study: str, tree: Tree) -> bytes:
    """Return ``study.json``; nothing where there is none that can be read."""
    return tree.asked(study).read_bytes() if read_study(study, tree) else b""


def _line(content: dict[str, Any]) -> bytes:
    return to_json(content) + b"\n"


def _zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(members.items()):
            info = zipfile.ZipInfo(name, _EARLIEST)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, wherever it is written
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def publish_file(path: Path, target: Tree) -> dict[str, Published]:
    """Publish the runs of a file of `pack`; after a `RecordError`, none was copied.

    The file's definition of a published study must equal the published one, or the project's.
    """
    with TemporaryDirectory(prefix="ddl-") as folder:
        source = Tree(Path(folder))
        studies = unpack(path, source)
        for study in studies:
            given, published = read_study(study, source), read_study(study, target)
            if given and published and given not in (published, project_study(study)):
                raise RecordError(
                    f"{path}: its definition of study {study!r} is neither the published one nor "
                    f"that of studies/{study}.yaml; publish it in a checkout of the same commit"
                )
        return publish_all(studies, source, target)


def unpack(path: Path, tree: Tree) -> list[str]:
    """Write the runs of a file of `pack` into an empty tree; return the names of the studies.

    `RecordError` names what is wrong with the file; then the tree is empty again.
    """
    if tree.runs.exists():
        raise RecordError(f"cannot unpack {path}: {tree.runs} exists")
    with _reading(path):
        content = _content(path)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members = _members(archive)
                for study in members:
                    _unpack_study(archive, study, members[study], tree)
            _verify(tree, [*members])
        except BaseException:
            shutil.rmtree(tree.runs, ignore_errors=True)
            raise
    return [*members]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn any exception while a block reads a stranger's file into a `RecordError` of one kind.

    Its text has no control characters, and no advice that the file could have written.
    """
    try:
        yield
    except DDLError as error:
        unknown = isinstance(error, UnknownNameError)
        remedy = "install the package with which it was measured" if unknown else error.remedy
        raise RecordError(_printable(f"{path}: {error.detail}"), remedy=remedy) from None
    except Exception as error:  # zipfile has many for an archive that is broken on purpose
        text = str(error) or type(error).__name__
        raise RecordError(_printable(f"{path} is not a file of records: {text}")) from None


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def _content(path: Path) -> bytes:
    try:
        require_file(path)
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise RecordError(f"is larger than {_mb(MOST_BYTES)}, the most that a file of records has")
    return content


def _members(archive: zipfile.ZipFile) -> dict[str, dict[str, zipfile.ZipInfo]]:
    """Return the members by study and file name, after a look at each; sizes are as declared.

    `zipfile` reads no more of a member than it declares.
    """
    infos = archive.infolist()
    if len(infos) > MOST_MEMBERS:
        raise RecordError(f"has {len(infos)} members; at most {MOST_MEMBERS} are read")
    if (size := sum(info.file_size for info in infos)) > MOST_UNPACKED:
        raise RecordError(f"is {_mb(size)} unpacked; at most {_mb(MOST_UNPACKED)} are read")
    names = [info.filename for info in infos]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RecordError(f"member {shown(twice[0])} is there twice")
    members: dict[str, dict[str, zipfile.ZipInfo]] = {}
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or info.is_dir():
            raise RecordError(f"member {shown(info.filename)} is not a plain file")
        if info.flag_bits & 1 or info.compress_type not in METHODS:
            raise RecordError(f"member {shown(info.filename)} is encrypted, or no deflated file")
        study, _, name = info.filename.partition("/")
        if info.filename == REPORT:
            continue
        if not is_name(study) or name not in (STUDY, RUNS, EPOCHS, PROFILES):
            known = ", ".join(f"STUDY/{one}" for one in (STUDY, RUNS, EPOCHS, PROFILES))
            raise RecordError(f"unknown member {shown(info.filename)}; known are {known}, {REPORT}")
        members.setdefault(study, {})[name] = info
    if not members:
        raise RecordError("holds no study")
    return dict(sorted(members.items()))


def _unpack_study(archive: zipfile.ZipFile, study: str, members: Members, tree: Tree) -> None:
    """Write the files of a study; `_verify` looks at its epochs and profiles."""
    if info := members.get(STUDY):
        write_study(_parse_study(archive, info, study), tree)
    runs: dict[str, RunFiles] = {}
    for where, content in _lines(archive, members.get(RUNS)):
        record = parse_record(Path(where), content)
        if record.study != study:
            raise RecordError(f"{where}: study = {shown(record.study)}, in the folder {study}")
        if record.status != "completed":
            raise RecordError(f"{where}: status = {record.status!r}; only completed runs are read")
        if record.run_id in runs:
            raise RecordError(f"{where}: run {record.run_id} is there twice")
        # The record was checked: `run_id` follows from its spec, and is one part of a path.
        runs[record.run_id] = RunFiles(tree.study(study) / record.run_id)
        _write(runs[record.run_id].record, to_json(content, indent=1) + b"\n")
    if not runs:
        raise RecordError(f"{study}/{RUNS} is missing, or has no line")
    epochs: dict[str, list[bytes]] = {run_id: [] for run_id in runs}
    for where, content in _lines(archive, members.get(EPOCHS)):
        epochs[_known_run(where, content.pop("run_id", None), runs)].append(_line(content))
    for run_id, rows in epochs.items():
        _write(runs[run_id].epochs, b"".join(rows))
    for where, content in _lines(archive, members.get(PROFILES)):
        run = runs[_known_run(where, content.get("run_id"), runs)]
        if run.profile.exists():
            raise RecordError(f"{where}: the profile of {run.directory.name} is there twice")
        _write(run.profile, to_json(content, indent=1) + b"\n")


def _parse_study(archive: zipfile.ZipFile, info: zipfile.ZipInfo, study: str) -> Study:
    if info.file_size > LONGEST_LINE:
        raise RecordError(f"{info.filename} is larger than {_mb(LONGEST_LINE)}")
    try:
        definition = Study.model_validate_json(archive.read(info))
    except ValidationError as error:
        raise RecordError(f"{info.filename}:\n{describe(error, Study)}") from None
    if definition.name != study:
        raise RecordError(f"{info.filename}: it is of study {definition.name!r}")
    definition.expand()
    return definition


def _lines(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON object of each line of a member, and where it is; none without a member."""
    if info is None:
        return
    with io.BufferedReader(archive.open(info)) as file:  # type: ignore[type-var]
        for number in count(1):
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                return
            where = f"{info.filename}, line {number}"
            if len(line) > LONGEST_LINE:
                raise RecordError(f"{where} is longer than {_mb(LONGEST_LINE)}")
            yield where, _object(where, line)


def _object(where: str, text: bytes) -> dict[str, Any]:
    try:
        content = from_json(text)
    except ValueError as error:
        raise RecordError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise RecordError(f"{where} holds {type(content).__name__}, not an object")
    return content


def _known_run(where: str, run_id: object, runs: Mapping[str, RunFiles]) -> str:
    if not isinstance(run_id, str) or run_id not in runs:
        raise RecordError(f"{where}: run_id = {shown(run_id)} is no run of {RUNS}")
    return run_id


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, content, sync=False)  # into a temporary folder


def _verify(tree: Tree, studies: Sequence[str]) -> None:
    for study in studies:
        for run in verify(tree, study):
            if run.damages:
                raise RecordError(f"{study}/{run.directory.name}: {'; '.join(run.damages)}")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.4g} MB"
