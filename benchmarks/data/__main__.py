"""List the image sets, or download some of them.

python -m benchmarks.data --list
python -m benchmarks.data cifar10 flowers102 --root FOLDER
"""

import argparse
import sys

import pandas as pd

from benchmarks.data import BUNDLED, REGISTRY
from skvfusion.image_data import expand_user


def rows():
    """Return the registry as a list of dicts, a row a set."""
    return [
        {
            "name": item.name,
            "set": item.title,
            "task": item.task,
            "classes": f"{item.n_classes}",
            "train": "at most 260000" if item.n_train is None else f"{item.n_train}",
            "test": f"{item.n_test}",
            "split": item.split,
            "licence": item.licence,
            "papers": f"{' + '.join(item.papers)}, {item.kind.upper()}",
            "how to get it": item.get,
        }
        for item in REGISTRY.values()
    ]


def markdown():
    """Return the registry as the Markdown table of DATA.md."""
    columns = list(rows()[0])
    lines = [columns, ["---"] * len(columns), *(row.values() for row in rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to download")
    parser.add_argument("--root", help="folder of sets, into which they are downloaded")
    parser.add_argument("--list", action="store_true", help="print all sets")
    parser.add_argument("--markdown", action="store_true", help="print all sets as the Markdown table of DATA.md")
    args = parser.parse_args(argv)
    if args.markdown:
        print(markdown())
    elif args.list or not args.names:
        table = pd.DataFrame(rows()).drop(columns="how to get it")
        print(table.to_string(index=False, justify="left"))
        print("\nBundled, nothing to get:")
        for name, (_, text) in BUNDLED.items():
            print(f"{name:20} {text}")
    else:
        unknown = [name for name in args.names if name not in REGISTRY]
        if unknown:
            parser.error(f"no set {', '.join(unknown)}; --list prints all")
        if not args.root:
            parser.error("--root FOLDER is needed to download")
        for name in args.names:
            bring(REGISTRY[name], expand_user(args.root))


def bring(item, root):
    """Download a set and say what a person has to do."""
    if item.steps:
        print(f"{item.name}: {item.steps.replace('ROOT', str(root))}", file=sys.stderr)
    item.bring(root)
    print(f"{item.name} is in {root}.")


if __name__ == "__main__":
    main()
