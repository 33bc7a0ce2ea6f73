"""One zip file with the records of studies, to be published on another machine.

The file has a folder for each study, with the files of a published one (see
`ddl_tools.records.stored`). It may come from anybody: no name in it becomes a path before it is
checked.
"""

import io
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from ddl_core.errors import DDLError, RecordError
from ddl_core.files import describe, read_plain, shown, some
from ddl_tools.records.damage import verify
from ddl_tools.records.ledger import definition, project_study, read_study, write_study
from ddl_tools.records.paths import StudyFiles, Tree
from ddl_tools.records.publish import Published, completed_runs, publish_all
from ddl_tools.records.run import UnknownNameError
from ddl_tools.records.storage import write_atomically
from ddl_tools.records.stored import LONGEST_LINE, is_line, to_lines
from ddl_tools.study import Study, is_name
from ddl_tools.visible import visible

MOST_BYTES = 10_000_000  # of the file
MOST_UNPACKED = 100_000_000  # bytes of all members
MOST_MEMBERS = 100

STUDY, RUNS = StudyFiles(Path()).definition.name, StudyFiles(Path()).runs.name
FILES = (STUDY, *(path.name for path in StudyFiles(Path()).lines))
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
        folders, files = contents(study, tree)
        runs += len(folders)
        members |= {f"{study}/{name}": content for name, content in files.items()}
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


def contents(study: str, tree: Tree) -> tuple[list[Path], dict[str, bytes]]:
    """Return the folders of the completed runs of a study, and its files, as they are published.

    `RecordError` if it has no completed run, or a record is damaged.
    """
    folders, _ = completed_runs(study, tree)
    if not folders:
        raise RecordError(f"study {study!r} has no completed run in {tree.runs}")
    files = {STUDY: _definition(study, tree), **to_lines(folders)}
    return folders, {name: content for name, content in files.items() if content}


def _definition(study: str, tree: Tree) -> bytes:
    """Return ``study.json``; nothing where there is none that can be read."""
    found = read_study(study, tree)
    return definition(found) if found else b""


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
        raise RecordError(visible(f"{path}: {error.detail}"), remedy=remedy) from None
    except Exception as error:  # zipfile has many for an archive that is broken on purpose
        text = str(error) or type(error).__name__
        raise RecordError(visible(f"{path} is not a file of records: {text}")) from None


def _content(path: Path) -> bytes:
    try:
        return read_plain(path, MOST_BYTES)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None


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
        if not is_name(study) or name not in FILES:
            known = ", ".join(f"STUDY/{one}" for one in FILES)
            raise RecordError(f"unknown member {shown(info.filename)}; known are {known}, {REPORT}")
        members.setdefault(study, {})[name] = info
    if not members:
        raise RecordError("holds no study")
    return dict(sorted(members.items()))


def _unpack_study(archive: zipfile.ZipFile, study: str, members: Members, tree: Tree) -> None:
    """Write the files of a study, whose lines `_verify` looks at."""
    if info := members.get(STUDY):
        write_study(_parse_study(archive, info, study), tree)
    if RUNS not in members or not members[RUNS].file_size:
        raise RecordError(f"{study}/{RUNS} is missing, or has no line")
    for path in StudyFiles(tree.study(study)).lines:
        if info := members.get(path.name):
            write_atomically(path, archive.read(info), sync=False)  # into a temporary folder


def _parse_study(archive: zipfile.ZipFile, info: zipfile.ZipInfo, study: str) -> Study:
    if info.file_size > LONGEST_LINE:
        raise RecordError(f"{info.filename} is larger than {_mb(LONGEST_LINE)}")
    try:
        found = Study.model_validate_json(archive.read(info))
    except ValidationError as error:
        raise RecordError(f"{info.filename}:\n{describe(error, Study)}") from None
    if found.name != study:
        raise RecordError(f"{info.filename}: it is of study {found.name!r}")
    found.expand()
    return found


def _verify(tree: Tree, studies: Sequence[str]) -> None:
    for study in studies:
        # A damaged line is named before what its run lacks without it.
        for run in sorted(verify(tree, study), key=lambda one: not is_line(one.directory)):
            name = "" if is_line(run.directory) else f" (run {run.directory.name})"
            if run.damages:
                kind = UnknownNameError if run.is_unknown else RecordError
                raise kind(f"{study}/{'; '.join(run.damages)}{name}")
            if run.record and run.record.status != "completed":
                text = f"status = {run.record.status!r}; only completed runs are read"
                raise RecordError(f"{study}/{RUNS}: {text}{name}")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.4g} MB"
