"""The options that all tables share, and what is published of them."""

import argparse
import shlex
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from benchmarks.backbones import read_backbones
from benchmarks.features import CACHE

RESULTS = Path(__file__).parent / "results"
GROUPS_OF_SETS = ("vfusion", "alf", "ood")
_FOLDER_SET = "folder:"
_PLACEHOLDERS = {"--data": "DATA/", "--cache": "CACHE/", "--out": "OUT/"}


class _Parser(argparse.ArgumentParser):
    """Fills in what depends on other options, and notes the command for the record."""

    default_sets = ("vfusion",)

    def parse_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else list(args)
        found = super().parse_args(words, namespace)
        quick = found.quick
        found.sets = found.sets or (["digits", "patches"] if quick else list(self.default_sets))
        found.seeds = found.seeds or (1 if quick else 3)
        found.shots = found.shots or (5 if quick else None)
        try:
            found.backbones = read_backbones(found.backbone or (["nano"] if quick else ["dinov2_b"]))
        except ValueError as error:
            self.error(str(error))
        if found.out is None:
            found.out = tempfile.mkdtemp(prefix="skvfusion-quick-") if quick else RESULTS
        found.out = Path(found.out)
        found.command = public_command(Path(self.prog).stem, words)
        return found


def arguments(doc, sets=("vfusion",)):
    """Return a parser with the options that all tables have; a table may add its own.

    Parameters
    ----------
    doc : str
        The table's docstring, shown by --help.
    sets : sequence of str, default=("vfusion",)
        The image sets unless --sets or --quick says otherwise.

    Returns
    -------
    ArgumentParser
        What it parses has, besides the options, ``backbones`` (of --backbone) and ``command`` (as it is published).
    """
    frame = sys._getframe(1).f_globals
    name = Path(frame.get("__file__") or sys.argv[0]).stem
    parser = _Parser(
        prog=name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.default_sets = sets
    add = parser.add_argument
    add(
        "--sets",
        nargs="+",
        metavar="SET",
        help="names of benchmarks.data, digits, patches, folder:PATH, or vfusion, alf, ood for the sets of the papers "
        f"(default: {' '.join(sets)})",
    )
    add("--data", default="data", metavar="FOLDER", help="where the image sets are (default: data)")
    add(
        "--backbone",
        action="append",
        metavar="NAME[=TIMM_NAME[:WEIGHTS]]",
        help="may be repeated; papers, vfusion, alf for those of the papers (default: dinov2_b)",
    )
    add("--seeds", type=_positive, metavar="N", help="seeds 0 to N-1 (default: 3)")
    add("--shots", type=_positive, metavar="K", help="training images of a class, drawn by the seed (default: all)")
    add("--validation", action="store_true", help="score on a quarter of the training images instead of the test part")
    add("--cache", default=CACHE, metavar="FOLDER", help=f"where features are kept (default: {CACHE})")
    add("--out", metavar="FOLDER", help="where results go (default: benchmarks/results; with --quick a temporary one)")
    add("--quick", action="store_true", help="two bundled sets, backbone nano, one seed, 5 images of a class")
    add("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    add("--n-jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    add("--restart", action="store_true", help="forget the results that are there")
    return parser


def _positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def public_command(name, words):
    """Return a command without the folders of the machine that it ran on.

    Parameters
    ----------
    name : str
        The table.
    words : list of str
        Its arguments.

    Returns
    -------
    str
    """
    shown, option = [], None
    for word in words:
        before, equals, after = word.partition("=")
        if word.startswith("--"):
            option = before
            shown.append(before + equals + _public_value(before, after) if equals else word)
        else:
            shown.append(_public_value(option, word))
    return shlex.join(["python", "-m", f"benchmarks.{name}", *shown])


def _public_value(option, value):
    if option in _PLACEHOLDERS:
        return _PLACEHOLDERS[option]
    if option == "--sets" and value.startswith(_FOLDER_SET):
        return f"{_FOLDER_SET}DATA/{set_label(value)}"
    if option == "--backbone" and value:
        with suppress(ValueError):
            backbones = read_backbones([value])
            return backbones[0].public if len(backbones) == 1 else value
    return value


def set_label(name):
    """Return what tables call a set: of a folder the last part."""
    return Path(name.removeprefix(_FOLDER_SET)).name if name.startswith(_FOLDER_SET) else name


def set_names(args):
    """Return the sets that are asked for, each once; vfusion, alf and ood are replaced by the sets they stand for."""
    found = []
    for name in args.sets:
        if name in GROUPS_OF_SETS:
            from benchmarks.data import REGISTRY  # it needs packages that bundled sets do not

            kind = "ood" if name == "ood" else "id"
            found += [key for key, each in REGISTRY.items() if each.kind == kind and name in (*each.papers, "ood")]
        else:
            found.append(name)
    return list(dict.fromkeys(found))
