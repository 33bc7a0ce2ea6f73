"""A folder with one good example of whatever `ddl` reads, and many bad ones."""

import gzip
import hashlib
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.launch.running import TINY
from tests.pictures import write_pictures

STUDY: dict[str, Any] = {"name": "small", "question": "?", "base": TINY, "repeats": 1}

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

# Text of a study's file -> what the message has to name.
STUDIES: dict[str, str] = {
    "": "bad.yaml",
    "- 1": "bad.yaml",
    "just a text": "bad.yaml",
    "name: [": "bad.yaml",
    "\tname: x": "bad.yaml",
    "name: x\x00": "bad.yaml",
    "name: a\nquestion: q\n---\nname: b": "bad.yaml",
    "name: !!python/object/apply:os.getcwd []": "bad.yaml",
    "name: a\nname: b\nquestion: q": "'name' is there twice",
    "name: a\nquestion: q\nbase: {epochs: 1, epochs: 2}": "'epochs' is there twice",
    "name: a\nquestion: q\nbase:\n  <<: {epochs: 1}\n  model: x": "model",
    "question: q": "name",
    "name: ../../elsewhere\nquestion: q": "name",
    "name: Capital\nquestion: q": "name",
    f"name: {'a' * 300}\nquestion: q": "name",
    "name: a": "question",
    "name: a\nquestion: q\nextra: 1": "extra",
    "name: a\nquestion: q\n1: 2": "bad.yaml",
    "name: a\nquestion: q\naxes: []": "axes",
    "name: a\nquestion: q\naxes: 7": "axes",
    "name: a\nquestion: q\naxes: {epochs: 3}": "axes",
    "name: a\nquestion: q\naxes: {epochs: []}": "axes.epochs",
    "name: a\nquestion: q\naxes: {epochs: [1, 1]}": "two grids",
    "name: a\nquestion: q\naxes: {epochs: [1, [2]]}": "epochs",
    "name: a\nquestion: q\naxes: {epochs: [1, {a: b}]}": "epochs",
    "name: a\nquestion: q\naxes: {repeat: [1]}": "repeat",
    "name: a\nquestion: q\nbase: {epochs: 1}\naxes: {epochs: [2]}": "epochs",
    "name: a\nquestion: q\nbase: 3": "base",
    "name: a\nquestion: q\nbase: {1: 2}": "base",
    "name: a\nquestion: q\nbase: {modle: x}": "modle",
    "name: a\nquestion: q\nbase: {epochs: .nan}": "epochs",
    "name: a\nquestion: q\nbase: {base_lr: .inf}": "base_lr",
    "name: a\nquestion: q\nbase: {epochs: yes}": "epochs",
    "name: a\nquestion: q\nbase: {schedule: off}": "schedule",
    "name: a\nquestion: q\nbase: {epochs: 1:30}": "1:30",
    "name: a\nquestion: q\nbase: {epochs: 010}": "010",
    "name: a\nquestion: q\nbase: {epochs: 0x10}": "0x10",
    "name: a\nquestion: q\nbase: {epochs: 2026-01-01}": "epochs",
    f"name: a\nquestion: q\nbase: {{seed: {'9' * 5000}}}": "bad.yaml",
    "name: a\nquestion: q\nbase: {nodes: 1000000000, strategy: ddp}": "nodes",
    "name: a\nquestion: q\nrepeats: 100000000": "repeats",
    "name: a\nquestion: q\nrepeats: yes": "repeats",
    "name: a\nquestion: q\nrepeats: 0": "repeats",
    "name: a\nquestion: q\nturns: {reference: {batch: 3}}": "turns.reference",
    "name: a\nquestion: q\nturns: {reference: {strategy: horovod}}": "turns.reference",
    f"name: a\nquestion: q\naxes: {{seed: [{', '.join(map(str, range(10_001)))}]}}": "seed",
    f"name: a\nquestion: q\naxes: {{epochs: [{', '.join(map(str, range(1, 5000)))}]}}": "runs",
    f"name: a\nquestion: q\n{BOMB}": "values",
    "name: a\nquestion: q\nbase: &b {epochs: *b}": "alias",
    f"name: a\nquestion: {'[' * 5000}": "deep",
    f"name: a\nquestion: q # {'x' * 200_000}": "bytes",
    "name: a\nquestion: q\nbase: &b {<<: *b}": "alias",
}
ENCODINGS = ("utf-16", "utf-16-be", "utf-32", "latin-1")

# Text of a machine's file -> what the message has to name.
SITES: dict[str, str] = {
    "": "description",
    "description = 3": "description",
    'description = "a"\ndescription = "b"': "bad.toml",
    'description = "a"\nunknown = 1': "unknown",
    'description = "a"\ngpus_per_node = -1': "gpus_per_node",
    'description = "a"\ngpus_per_node = nan': "gpus_per_node",
    'description = "a"\ntime = "1:99:00"': "time",
    'description = "a"\nmodules = "git"': "modules",
    f'description = "a"\nrequeues = {"9" * 5000}': "bad.toml",
    f"description = {'[' * 5000}": "bad.toml",
    "no toml at all": "bad.toml",
}

Photos = Callable[[Path], None]
"""Damages a copy of the good photos."""


def _a_class(folder: Path) -> Path:
    return folder / "train" / "class0"


def _mutual(folder: Path) -> None:
    (folder / "train" / "class0" / "other").symlink_to(folder / "train" / "class1")
    (folder / "train" / "class1" / "other").symlink_to(folder / "train" / "class0")


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the path of a socket has to be short
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


PHOTOS: dict[str, Photos] = {
    "dangling.jpg": lambda folder: (_a_class(folder) / "dangling.jpg").symlink_to("nowhere"),
    "itself.jpg": lambda folder: (_a_class(folder) / "itself.jpg").symlink_to("itself.jpg"),
    "circle": lambda folder: (_a_class(folder) / "circle").symlink_to(folder / "train"),
    "other": _mutual,
    "fifo.jpg": lambda folder: os.mkfifo(_a_class(folder) / "fifo.jpg"),
    "socket.jpg": lambda folder: _socket(_a_class(folder) / "socket.jpg"),
    "endless.jpg": lambda folder: (_a_class(folder) / "endless.jpg").symlink_to("/dev/zero"),
    "val": lambda folder: shutil.rmtree(folder / "val"),
    "empty": lambda folder: (folder / "train" / "empty").mkdir(),
    "class folders": lambda folder: _emptied(folder / "train"),
    "train": lambda folder: shutil.rmtree(folder / "train"),
}
# What only a look into every file shows.
DAMAGED: dict[str, Photos] = {
    "text.jpg": lambda folder: (_a_class(folder) / "text.jpg").write_text("no picture"),
    "nothing.jpg": lambda folder: (_a_class(folder) / "nothing.jpg").touch(),
    "manifest.json": lambda folder: os.mkfifo(folder / "manifest.json"),
    "is damaged": lambda folder: (folder / "manifest.json").write_text("{" * 5000),
}
SHARDS: dict[str, Callable[[Path], None]] = {
    "train-00000-of-00001": lambda path: path.write_bytes(b"no record" * 10),
    "train-00000-of-00002": lambda path: path.write_bytes(b"\0" * 7),
    "train-00000-of-00003": lambda path: os.mkfifo(path),
    "train-00000-of-00004": lambda path: path.symlink_to("nowhere"),
}


class World:
    """The folder; everything in it is made when it is asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results = root / "results"
        self.photos = write_pictures(root / "photos", 80, 8)
        self.study = self.file("small.yaml", yaml.safe_dump(STUDY))
        self.site = self.file("here.toml", 'description = "here"\n')
        self.report = self.file(
            "report.csv", '"Total Time (ns)","Instances","Name"\n5,1,"some_kernel"\n'
        )

    def file(self, name: str, content: str) -> Path:
        path = self.root / name
        path.write_text(content, encoding="utf-8")
        return path

    def bad(self, name: str, content: str | bytes) -> str:
        """Return a file of that name, another one for each content."""
        data = content if isinstance(content, bytes) else content.encode()
        folder = self.root / "bad" / hashlib.sha256(data).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return str(folder / name)

    def environment(self) -> dict[str, str]:
        """Variables that keep all commands inside, and away from SLURM."""
        nothing = self.root / "bin"
        nothing.mkdir(exist_ok=True)
        places = {"DDL_RESULTS": self.results, "JUPYTER_DATA_DIR": self.root / "jupyter"}
        return {name: str(path) for name, path in places.items()} | {"PATH": str(nothing)}

    def place(self, kind: str) -> str:
        """Return a path that is no place for a file or folder."""
        path = self.root / kind
        makers: dict[str, Callable[[], object]] = {
            "fifo": lambda: os.mkfifo(path),
            "socket": lambda: _socket(path),
            "circle": lambda: path.symlink_to("circle"),
            "dangling": lambda: path.symlink_to("nowhere"),
            "file": lambda: path.write_text(""),
            "folder": lambda: path.mkdir(),
        }
        if kind in makers and not os.path.lexists(path):
            makers[kind]()
        named = {"device": "/dev/null", "empty": "", "long": str(self.root / ("x" * 300))}
        named |= {"newline": f"{self.root}/a\nb", "bytes": f"{self.root}/\udcff"}
        return named.get(kind, str(path))

    def set_of_photos(self, name: str) -> Path:
        """Return photos with one thing wrong."""
        folder = self.root / "sets" / name.replace(" ", "_")
        if not folder.exists():
            shutil.copytree(self.photos, folder)
            (PHOTOS | DAMAGED)[name](folder)
        return folder

    def set_of_shards(self, name: str) -> Path:
        """Return a folder with one shard that is none."""
        folder = self.root / "shards" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            SHARDS[name](folder / name)
        return folder

    def packed(self, kind: str) -> Path:
        """Return a folder of packed files of Fashion-MNIST that are none."""
        folder = self.root / "packed" / kind
        if not folder.exists():
            folder.mkdir(parents=True)
            path = folder / "train-images-idx3-ubyte.gz"
            if kind == "fifo":
                os.mkfifo(path)
            elif kind == "garbage":
                path.write_bytes(b"no gzip")
            elif kind == "short":
                path.write_bytes(gzip.compress(b"\0\0\x08\x03"))
        return folder

    def report_of(self, kind: str) -> Path:
        """Return a file that is no report of Nsight Systems."""
        path = self.root / f"{kind}.report"
        if path.exists():
            return path
        if kind == "foreign":
            with closing(sqlite3.connect(path)) as base:
                base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
            return path
        content = {
            "empty": b"",
            "binary": bytes(range(256)),
            "utf16": '"Total Time (ns)","Instances","Name"\n'.encode("utf-16"),
            "columns": b"a,b,c\n1,2,3\n",
            "bare": b'"Total Time (ns)","Instances","Name"\n',
            "words": b'"Total Time (ns)","Instances","Name"\nmuch,1,"kernel"\n',
            "trace": b'"Start (ns)","Duration (ns)","Name"\nsoon,long,"kernel"\n',
            "cut": b"SQLite format 3\x00" + b"\0" * 50,
        }
        path.write_bytes(content[kind])
        return path


REPORTS = ("empty", "binary", "utf16", "columns", "bare", "words", "trace", "cut", "foreign")
PACKED = ("missing", "fifo", "garbage", "short")


@contextmanager
def inside(world: World) -> Iterator[None]:
    """Work in the world's folder, as its environment says."""
    before, folder = dict(os.environ), Path.cwd()
    os.environ.update(world.environment())
    os.chdir(world.root)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
