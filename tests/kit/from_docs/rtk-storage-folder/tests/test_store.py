import errno
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rtk_storage_folder import StoreOptions
from rtk_storage_folder.store import Store

from rtk.plugin.testing import Check, suite


def test_pages_outlive_the_store(tmp_path: Path) -> None:
    options = StoreOptions(path=tmp_path / "new" / "pages")
    store = Store(options)
    assert store.put("a", memoryview(b"page"))
    store.close()
    (tmp_path / "new" / "pages" / "b.part").write_bytes(b"half a p")
    store = Store(options)
    assert (store.get("a"), store.exists("b")) == (b"page", False)
    assert [path.name for path in (tmp_path / "new" / "pages").iterdir()] == ["a.page"]


def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    store = Store(StoreOptions(path=tmp_path, max_bytes=4))
    for key in ("a", "b"):
        assert store.put(key, memoryview(2 * key.encode()))
    assert store.get("a") == b"aa"
    store = Store(StoreOptions(path=tmp_path, max_bytes=4))
    assert store.put("c", memoryview(b"c"))
    assert [store.exists(key) for key in "abc"] == [True, False, True]
    assert not store.put("d", memoryview(b"ddddd"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(Path, "replace", fail)
    store = Store(StoreOptions(path=tmp_path))
    if code == errno.ENOSPC:
        assert not store.put("a", memoryview(b"page"))
    else:
        with pytest.raises(OSError, match="no"):
            store.put("a", memoryview(b"page"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("check", suite("storage"), ids=str)
def test_small_stores_keep_the_contract_too(check: Check) -> None:
    with TemporaryDirectory() as folder:
        check(lambda: Store(StoreOptions(path=Path(folder), max_bytes=200_000)))
