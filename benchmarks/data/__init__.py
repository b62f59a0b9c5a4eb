"""The image sets of the benchmarks: a registry, readers, two bundled sets and corruptions; see ../DATA.md."""

from .bundled import BUNDLED
from .corruptions import CORRUPTIONS, corrupt
from .image_set import ImageSet
from .registry import REGISTRY, read_set
from .split import SetNotFound, Split

__all__ = ["BUNDLED", "CORRUPTIONS", "REGISTRY", "ImageSet", "SetNotFound", "Split", "corrupt", "read_set"]
