"""The command line: ``skvfusion`` or ``python -m skvfusion``."""

import argparse
import os
import shlex
import sys
import warnings
from pathlib import Path

from . import __version__
from .commands import ON_ERROR, compare_images, describe_model, extract_images, list_backbones, predict_images
from .demo import main as run_demo
from .methods import METHODS

_EXIT_CODES = "exit codes: 0 all went well, 1 nobody read the output, 2 an error of the user's, 130 interrupted"
_DATA = (
    "DATA is a folder with a sub-folder per class, or with train/ and test/ that hold such sub-folders; or a CSV with "
    "the columns path and label, and perhaps group and split (train or test), its paths relative to it. In folders, "
    "files are images by their ending, at any depth; hidden files are left out, and whatever else is left out is said."
)


def main(argv=None):
    """Run the command line.

    Parameters
    ----------
    argv : list of str, default=None
        Arguments; None takes those of the process.

    Returns
    -------
    int
        Exit code: 0 if all went well, 1 if nobody read the output to its end, 2 for an error of the user's, 130 if the
        user interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Names of files may hold what the terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    argv = sys.argv[1:] if argv is None else argv
    args = vars(_parser().parse_args(argv))
    run, kept = args.pop("run"), args.pop("kept")
    if "command" in args:
        args["command"] = shlex.join(["skvfusion", *argv])
    try:
        with warnings.catch_warnings():
            warnings.formatwarning = _format_warning
            run(**args)
            # What is still in the buffer would fail after the exit code is known.
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has enough, as in ``skvfusion demo | head``.
        _silence(sys.stdout)
        return 1
    except (ValueError, OSError, ImportError) as error:
        print(f"skvfusion: {error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # a full disk
            _silence(sys.stdout)
        return 2
    except KeyboardInterrupt:
        print(f"\nskvfusion: interrupted. {kept(args)}", file=sys.stderr)
        return 130
    finally:
        warnings.formatwarning = _FORMAT_WARNING
    return 0


def _silence(stream):
    """Send what is left in a stream's buffer nowhere, or Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_FORMAT_WARNING = warnings.formatwarning


def _format_warning(message, *_):
    return f"skvfusion: {message}\n"


def _parser():
    parser = argparse.ArgumentParser(
        prog="skvfusion",
        description="Fuse all layers of one frozen Vision Transformer into a better classifier.",
        epilog="example: skvfusion demo\n         skvfusion compare photos --backbone dinov2_s --report out\n"
        f"         skvfusion predict out/model.skvfusion new/*.jpg\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_compare(commands)
    _add_predict(commands)
    _add_info(commands)
    _add_extract(commands)
    _add_backbones(commands)
    return parser


def _add_demo(commands):
    demo = commands.add_parser(
        "demo",
        help="compare fusing the layers with using one, on handwritten digits",
        description="Handwritten digits (scikit-learn's) through the embedded backbone 'nano', without a download: the "
        "last layer, the best layer, the average of the layers, Super Learner, ALF and VFusion.",
        epilog="example: skvfusion demo --seeds 5 --out demo",
    )
    demo.add_argument("--seeds", type=_positive, default=1, help="how many seeds to average over (default: 1)")
    demo.add_argument("--seed", type=_seed, default=0, help="the first seed (default: 0)")
    _add_device(demo)
    demo.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="also write the table (demo.csv), each seed's figures (demo_seeds.csv) and accuracy by layer (demo.png)",
    )
    demo.set_defaults(run=run_demo, kept=lambda args: "Nothing was written.")


def _add_compare(commands):
    compare = commands.add_parser(
        "compare",
        help="find out whether fusing pays on your images; write a report and the best model",
        description="Every method on the same images: is fusing the layers better than the last one? Writes "
        "report.html (which needs no network), tables, pictures, and the best model, chosen by cross-validation. "
        + _DATA,
        epilog="example: skvfusion compare photos --backbone dinov2_s --report out",
    )
    _add_data(compare)
    compare.add_argument("--report", type=Path, required=True, metavar="DIR", help="the folder to write to")
    _add_extraction(compare, "cache in the report's folder")
    compare.add_argument(
        "--methods", type=_methods, default="all", help=f"some of {','.join(METHODS)}, with commas (default: all)"
    )
    compare.add_argument(
        "--test-size",
        type=_share,
        default=0.25,
        help="share of the images to test on, of each class, if the data has no test split (default: 0.25)",
    )
    compare.add_argument(
        "--cv", type=_folds, metavar="FOLDS", help="test by cross-validation instead, in so many folds"
    )
    compare.add_argument("--seed", type=_seed, default=0, help="seed of split, training and intervals (default: 0)")
    compare.add_argument(
        "--n-jobs", type=_jobs, metavar="N", help="fits to run at once; -1 is one per core (default: 1)"
    )
    compare.set_defaults(run=compare_images, kept=_kept_by_compare, command=None)


def _add_predict(commands):
    predict = commands.add_parser(
        "predict",
        help="classify images by a model that compare wrote",
        description="Prints the class of each image, its probability, and whether the layers disagree more than "
        "they do on nine tenths of the training images (while these were left out of training; see skvfusion info). "
        "That is measured by the depth, the first layer, counted from 0, from which on the probes of all layers give "
        "this class, and then by the number of other layers, which do not; --csv also prints these two.",
        epilog="example: skvfusion predict out/model.skvfusion new/*.jpg --csv > classes.csv",
    )
    predict.add_argument("model", type=Path, metavar="MODEL", help="the model file")
    predict.add_argument("images", nargs="+", metavar="IMAGES", help="image files, or folders of them")
    predict.add_argument("--csv", action="store_true", dest="as_csv", help="print a CSV with full precision")
    predict.add_argument("--weights", metavar="FILE", help="the backbone's weights, if they are not where they were")
    _add_device(predict)
    _add_cache(predict, "none")
    _add_on_error(predict)
    predict.set_defaults(run=predict_images, kept=_kept_by_cache)


def _add_info(commands):
    info = commands.add_parser(
        "info",
        help="say what is known of a model file",
        description="Classes, backbone, layers, method, accuracy, date, versions, and when predict warns.",
        epilog="example: skvfusion info out/model.skvfusion",
    )
    info.add_argument("model", type=Path, metavar="MODEL", help="the model file")
    info.set_defaults(run=describe_model, kept=lambda args: "Nothing was to be kept.")


def _add_extract(commands):
    extract = commands.add_parser(
        "extract",
        help="write the layers of your images to a .npy file",
        description="Writes an array of shape (images, layers, width), or (images, layers, 2, width) for both tokens, "
        "and beside it a .csv with the columns path, label and row (and group and split, if known). An image that "
        f"cannot be read has a row of NaN, and is not in the table. {_DATA}",
        epilog="example: skvfusion extract photos --backbone dinov2_s --out features.npy --dtype float16",
    )
    _add_data(extract)
    extract.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .npy file to write")
    _add_extraction(extract, "none")
    extract.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="what is stored (default: float32)"
    )
    extract.set_defaults(run=extract_images, kept=_kept_by_extract)


def _add_backbones(commands):
    backbones = commands.add_parser(
        "backbones",
        help="list the short names of backbones",
        description="Lists the short names of backbones, with the number of layers and their width.",
        epilog="example: skvfusion backbones",
    )
    backbones.set_defaults(run=list_backbones, kept=lambda args: "Nothing was to be kept.")


def _add_data(parser):
    parser.add_argument("data", metavar="DATA", help="folder or CSV; see above")
    parser.add_argument(
        "--groups",
        type=Path,
        metavar="CSV",
        help="columns path and group (paths relative to the CSV): a group's images are never on both sides of a split",
    )
    _add_on_error(parser)


def _add_extraction(parser, default_cache):
    parser.add_argument(
        "--backbone", default="dinov2_s", help="see skvfusion backbones, or any timm model (default: dinov2_s)"
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="weights of the backbone, or random (default: the pretrained ones)"
    )
    parser.add_argument("--image-size", type=_positive, metavar="PIXELS", help="side of the backbone's input")
    parser.add_argument(
        "--layers",
        type=_layers,
        default="all",
        help="all, second_half, strided:3, quarterly, last:4, or numbers as in --layers=3,7,-1 (default: all)",
    )
    parser.add_argument(
        "--tokens", choices=("cls", "mean", "cls+mean"), default="cls", help="what is read of a layer (default: cls)"
    )
    parser.add_argument(
        "--tap", choices=("block", "norm2"), default="block", help="where a layer is read (default: block)"
    )
    _add_device(parser)
    _add_cache(parser, default_cache)


def _add_device(parser):
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")


def _add_cache(parser, default):
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help=f"folder that keeps the layers of images, so that none is computed twice (default: {default})",
    )


def _add_on_error(parser):
    parser.add_argument(
        "--on-error",
        choices=ON_ERROR,
        default="raise",
        help="at an image that cannot be read, stop (raise), or leave it out and list it (skip) (default: raise)",
    )


def _kept_by_compare(args):
    return f"What was computed of the images is kept in {args['cache'] or args['report'] / 'cache'}. {_GO_ON}"


def _kept_by_extract(args):
    kept = args["cache"] or f"{args['out']}.part"
    return f"What was computed of the images is kept in {kept}. {_GO_ON}"


def _kept_by_cache(args):
    if args["cache"] is None:
        return "Nothing is kept; with --cache DIR, the same command would go on from there."
    return f"What was computed of the images is kept in {args['cache']}. {_GO_ON}"


_GO_ON = "The same command goes on from there."


def _seed(text):
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {2**31 - 1}")
    return int(text)


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _jobs(text):
    if not text.removeprefix("-").isdecimal() or not 0 < abs(int(text)) < 2**15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of jobs: 1 or more, or -1 for one per core")
    return int(text)


def _folds(text):
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 2")
    return int(text)


def _share(text):
    try:
        share = float(text)
    except ValueError:
        share = 0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return share


def _methods(text):
    names = text.split(",")
    unknown = [name for name in names if name not in METHODS]
    if text != "all" and unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(METHODS)}")
    return "all" if text == "all" else names


def _layers(text):
    """Return numbers as a list of them; anything else is for the extractor to check, which knows how many there are."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return text
