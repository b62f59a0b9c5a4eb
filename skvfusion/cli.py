"""The command line: ``skvfusion`` or ``python -m skvfusion``."""

import argparse
import os
import sys
from pathlib import Path

from . import __version__
from .demo import main as run_demo


def main(argv=None):
    """Run the command line.

    Parameters
    ----------
    argv : list of str, default=None
        Arguments; None takes those of the process.

    Returns
    -------
    int
        Exit code: 0 if all went well, 2 for an error of the user's.
    """
    parser = _parser()
    args = vars(parser.parse_args(argv))
    run = args.pop("run")
    try:
        run(**args)
    except BrokenPipeError:
        # Whoever read the output has enough, as in ``skvfusion demo | head``; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError) as error:
        print(f"skvfusion: {error}", file=sys.stderr)
        return 2
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="skvfusion",
        description="Fuse all layers of one frozen Vision Transformer into a better classifier.",
        epilog="example: skvfusion demo",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="compare fusing the layers with using one, on handwritten digits",
        description="Handwritten digits (scikit-learn's) through the embedded backbone 'nano', without a download: the "
        "last layer, the best layer, the average of the layers, Super Learner, ALF and VFusion.",
        epilog="example: skvfusion demo --seeds 5 --out demo",
    )
    demo.add_argument("--seeds", type=_positive, default=1, help="how many seeds to average over (default: 1)")
    demo.add_argument("--seed", type=_seed, default=0, help="the first seed (default: 0)")
    demo.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    demo.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="also write the table (demo.csv), each seed's figures (demo_seeds.csv) and accuracy by layer (demo.png)",
    )
    demo.set_defaults(run=run_demo)
    return parser


def _seed(text):
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {2**31 - 1}")
    return int(text)


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
