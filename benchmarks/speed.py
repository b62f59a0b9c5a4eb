"""Measure speed as ratios to a named alternative in the same run.

    python -m benchmarks.speed --what engine
    python -m benchmarks.speed --what extraction [--images FOLDER]
    python -m benchmarks.speed --what fusion
    python -m benchmarks.speed --what compare
    python -m benchmarks.speed --what scaling [--csv FILE]

Figures are medians over interleaved repetitions, so that a busy machine slows both sides alike.
"""

import argparse
from pathlib import Path

import torch

from benchmarks.speed_compare import compare
from benchmarks.speed_engine import engine
from benchmarks.speed_extraction import extraction
from benchmarks.speed_fusion import fusion
from benchmarks.speed_scaling import scaling

BENCHMARKS = {
    "engine": engine,
    "extraction": extraction,
    "fusion": fusion,
    "compare": compare,
    "scaling": scaling,
}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=BENCHMARKS, default="engine", help="what to measure (default: %(default)s)")
    parser.add_argument(
        "--repetitions", type=_positive, default=5, help="how often, the dearest less (default: %(default)s)"
    )
    parser.add_argument("--threads", type=_positive, help="torch threads (default: torch's own choice)")
    parser.add_argument("--images", help="extraction: take the pictures in this folder, resized")
    parser.add_argument("--csv", type=Path, help="scaling: write the figures into this file, too")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    args = parser.parse_args(argv)
    if args.csv and args.what != "scaling":
        parser.error(f"--csv goes with --what scaling, not with {args.what}.")
    if args.csv and not args.csv.parent.is_dir():
        parser.error(f"--csv {args.csv}: there is no folder {args.csv.parent}; make it first.")
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.repetitions} repetitions")
    BENCHMARKS[args.what](args)


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


if __name__ == "__main__":
    main()
