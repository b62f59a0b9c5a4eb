"""The files of a table: its cells, each on the disk as soon as it is finished, and what they were made with."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

KEY = ["set", "backbone", "shots", "seed", "method"]
#: What may tell cells from others with the same key; "" in rows that do not need it.
VARIANTS = ["part", "tap", "norm", "tokens", "corruption", "severity", "variant"]
LAST = ["error", "commit"]


class ResultsFile:
    """The CSV of a table: cells are added as they are finished, and are found again by the next run."""

    def __init__(self, args, table, variants):
        self.path = args.out / f"{table}.csv"
        self.facts_path = args.out / f"{table}.json"
        unknown = sorted(variants.keys() - set(VARIANTS))
        if unknown:
            raise ValueError(f"variants {unknown} are not among {VARIANTS}.")
        self.variants = {name: str(value) for name, value in variants.items()}
        self.commit = commit()
        args.out.mkdir(parents=True, exist_ok=True)
        if args.restart and table not in vars(args).setdefault("restarted", set()):
            args.restarted.add(table)  # a table may be filled by several calls
            self.path.unlink(missing_ok=True)
            self.facts_path.unlink(missing_ok=True)
        self.rows = self._read()
        self._warn_of_commits()

    def has(self, key):
        """Tell whether a cell is there without an error."""
        row = self.rows.get(self._key(key))
        return row is not None and not row.get("error")

    def add(self, key, figures):
        """Keep a finished cell, on the disk when this returns."""
        row = dict(zip(KEY, key, strict=True)) | self.variants | figures
        row |= {"error": figures.get("error", ""), "commit": self.commit}
        if row["error"]:
            print(f"{', '.join(key)}: {row['error']}", file=sys.stderr)
        replaced = self._key(key) in self.rows
        self.rows[self._key(key)] = row
        header = self._header()
        if replaced or self._broken or header != self._written_header:
            self._write_all(header)
            return
        with self.path.open("a", newline="") as out:
            csv.DictWriter(out, header, restval="").writerow(row)
            out.flush()
            os.fsync(out.fileno())

    def note(self, name, backbone, features):
        """Keep the sizes of a set and what a backbone was; refuse to mix two backbones of one name."""
        facts = read_facts(self.facts_path)
        sets, backbones = facts.setdefault("sets", {}), facts.setdefault("backbones", {})
        known = backbones.get(backbone.name, {}).get("fingerprint")
        if known and features.fingerprint and known != features.fingerprint:
            raise SystemExit(
                f"{self.path.name} holds results of another backbone called {backbone.name!r} (other weights, "
                "preprocessing or versions); give it another name, or forget them by --restart."
            )
        sets[name] = {
            "train": len(features.y),
            "test": len(features.y_test),
            "classes": len(np.unique(features.y)),
        }
        backbones[backbone.name] = {"given": backbone.public, "fingerprint": features.fingerprint}
        write_facts(self.facts_path, facts)

    def frame(self):
        """Return the cells of these variants; seeds and figures are numbers."""
        rows = [row for key, row in self.rows.items() if key == self._key(key[: len(KEY)])]
        frame = pd.DataFrame(rows, columns=self._header())
        for column in frame.columns.difference([*KEY, *self.variants, *LAST]):
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
        frame["seed"] = frame["seed"].astype(int)
        return frame

    def _key(self, key):
        return (*key, *(f"{name}={value}" for name, value in sorted(self.variants.items())))

    def _read(self):
        self._written_header, self._broken = [], False
        if not self.path.exists():
            return {}
        lines = self.path.read_text().splitlines(keepends=True)
        # The last line has no end if the machine went down while it was written.
        self._broken = not lines or not lines[-1].endswith("\n")
        reader = csv.DictReader(lines[:-1] if self._broken else lines)
        self._written_header = list(reader.fieldnames or [])
        rows = list(reader)
        extra = sorted(set(self._written_header) & set(VARIANTS))
        return {
            (*(row[name] for name in KEY), *(f"{name}={row[name]}" for name in extra if row[name])): row for row in rows
        }

    def _header(self):
        names = dict.fromkeys(
            name for row in [dict.fromkeys(self._written_header), *self.rows.values()] for name in row
        )
        between = [name for name in names if name not in [*KEY, *VARIANTS, *LAST]]
        return [*KEY, *(name for name in VARIANTS if name in names), *between, *LAST]

    def _write_all(self, header):
        part = self.path.with_suffix(".csv.part")
        with part.open("w", newline="") as out:
            writer = csv.DictWriter(out, header, restval="")
            writer.writeheader()
            writer.writerows(self.rows.values())
            out.flush()
            os.fsync(out.fileno())
        part.replace(self.path)
        self._written_header, self._broken = header, False

    def _warn_of_commits(self):
        others = sorted({row["commit"] for row in self.rows.values()} - {self.commit})
        if others:
            print(
                f"{self.path.name} holds results of commit {', '.join(others)}, this is {self.commit}; "
                "--restart computes all of them anew.",
                file=sys.stderr,
            )


def read_facts(path):
    """Return what is known of a table besides its cells; nothing if there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_facts(path, facts):
    """Write it, whole or not at all."""
    part = path.with_suffix(".json.part")
    part.write_text(json.dumps(facts, indent=2) + "\n")
    part.replace(path)


def commit():
    """Return the commit of these scripts, "-dirty" if they or the package were changed since; "unknown" outside git."""
    # Results are not counted, as writing them changes nothing that they come from.
    described = _git("describe", "--always", "--exclude=*")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)benchmarks/results")
    if described is None or changed is None:
        return "unknown"
    return f"{described}-dirty" if changed else described


def _git(*words):
    try:
        ran = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()
