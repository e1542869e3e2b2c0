"""Views of installed packages, declared as entry points of the group `cablestore.views`.

An entry point is a `View` or a list of views. The command line and Spark's workers add these views to cablestore's own.
A store's folder contains names of views, but not names of modules, so opening a store does not load code that it
selects.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from cablestore.errors import CableStoreError
from cablestore.index.view import Catalog, View
from cablestore.views import CATALOG

GROUP: Final = "cablestore.views"


@cache
def installed_catalog() -> Catalog:
    """Return cablestore's own views and the views of installed packages.

    Raises CableStoreError for a package that cannot be loaded, and ArgumentError for views that a catalog rejects.
    """
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return CATALOG.extended(view for point in points for view in _load(point))


def _load(point: EntryPoint) -> tuple[View, ...]:
    package = point.dist.name if point.dist is not None else "a package"
    where = f"the entry point {point.name} = {point.value} of {package}"
    try:
        loaded: Any = point.load()
    except Exception as error:
        raise CableStoreError(
            f"cannot load {where}: {type(error).__name__}: {error}. Repair or remove the package"
        ) from error
    views = (loaded,) if isinstance(loaded, View) else loaded
    if not isinstance(views, list | tuple) or not all(isinstance(view, View) for view in views):
        raise CableStoreError(f"{where} has the type {type(loaded).__name__}, expected a View or a list of views")
    return tuple(views)


def why_not_loaded(load: Callable[[], Catalog]) -> str | None:
    """Return why this process cannot use the catalog of another process that `load` returns, None if it can."""
    try:
        catalog = load()
    except (ImportError, AttributeError) as error:
        return str(error)
    if catalog.versions.keys() <= CATALOG.versions.keys():
        return None
    installed = installed_catalog().versions
    for name in catalog.versions.keys() - CATALOG.versions.keys():
        needed = catalog.versions[name]
        if installed.get(name, needed) != needed:
            return f"the view {name} has version {installed[name]} here, expected version {needed}"
    return None
