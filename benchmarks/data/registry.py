"""The sets of the papers by name, and the one function that reads any set; ../DATA.md is the table."""

from skvfusion.image_data import expand_user

from . import loaders
from .bundled import BUNDLED
from .sets import ID_SETS, OOD_SETS
from .split import SetNotFound

REGISTRY = {item.name: item for item in [*ID_SETS, *OOD_SETS]}


def read_set(name, root=None):
    """Read a set by name.

    Parameters
    ----------
    name : str
        A key of ``REGISTRY``; "digits" or "patches", which need no root; "folder:PATH" for a folder with a folder per
        class, below train and test or not; or the name of such a folder that lies directly in ``root``.
    root : path, default=None
        Where the sets lie.

    Returns
    -------
    Split

    Raises
    ------
    SetNotFound
        If it is not there; the message says how to get it.
    ValueError
        If there is no set of that name.
    """
    if name in BUNDLED:
        return BUNDLED[name][0]()
    if name.startswith("folder:"):
        path = expand_user(name.removeprefix("folder:"))
        if not path.is_dir():
            raise SetNotFound(f"There is no folder {path}. Pass folder:PATH with the path of a folder per class.")
        return loaders.folder_per_class(path, ".")
    if root is not None and name not in REGISTRY and (expand_user(root) / name).is_dir():
        return loaders.folder_per_class(expand_user(root), name)
    if name not in REGISTRY:
        raise ValueError(
            f"There is no set {name!r}. Choose one of {', '.join([*BUNDLED, *REGISTRY])}; folder:PATH; or the name of "
            f"a folder in the folder of sets, which is {root}."
        )
    if root is None:
        raise SetNotFound(
            f"No folder of sets was given. Pass one, here called ROOT. To get {name!r}: {REGISTRY[name].get}"
        )
    return REGISTRY[name].load(root)
