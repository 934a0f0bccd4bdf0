"""The names that the package offers."""

import pytest

import fbtasks


def test_public_names():
    assert len(set(fbtasks.__all__)) == len(fbtasks.__all__)
    assert {name for name in fbtasks.__all__ if not callable(getattr(fbtasks, name))} == {"FEATURES"}
    with pytest.raises(AttributeError, match="no attribute 'tsk'"):
        _ = fbtasks.tsk
    public = {n for n, v in vars(fbtasks).items() if not n.startswith("_") and type(v).__name__ != "module"}
    assert public - {"TYPE_CHECKING", "Any", "import_module"} == set(fbtasks.__all__)
