"""Reading tables of images: CSV as people and their programs write it."""

import csv
import io
import os
import re

COLUMNS = ("path", "label", "group", "split")


def read_rows(path, required):
    """Return a table's rows as dicts of the known columns that it has, with absolute paths and line numbers."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8; save it as 'CSV UTF-8'.") from error
    # A line of Excel's own.
    told = re.match('"?sep=(?P<delimiter>[^\r\n"])"?\r?\n', text, re.IGNORECASE)
    text, before = (text[told.end() :], 1) if told else (text, 0)
    delimiter = told["delimiter"] if told else _find_delimiter(text.partition("\n")[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        _check_header(header, path, required)
        rows = [
            _row(header, values, path, before + reader.line_num) for values in reader if any(map(str.strip, values))
        ]
    except csv.Error as error:
        raise ValueError(f"Line {before + reader.line_num} of {path} cannot be read: {error}.") from error
    if not rows:
        raise ValueError(f"{path} has a header but no rows.")
    seen = {}
    for row in rows:
        if row["path"] in seen:
            raise ValueError(
                f"{path} names {row['path']} twice, in lines {seen[row['path']]} and {row['line']}; name each once."
            )
        seen[row["path"]] = row["line"]
    return rows


def _find_delimiter(header):
    """Return which of the three gives most names of columns that are known, or else that there are most of."""

    def n_known(delimiter):
        return len(set(COLUMNS) & {name.strip('" \t\r').lower() for name in header.split(delimiter)})

    return max(",;\t", key=lambda delimiter: (n_known(delimiter), header.count(delimiter)))


def _check_header(header, path, required):
    missing = [name for name in required if name not in header]
    if missing:
        found = f"its first line names {few(header)}" if any(header) else "it is empty"
        raise ValueError(
            f"{path} lacks the column {' and the column '.join(missing)}: {found}. The first line must name the "
            f"columns {' and '.join(required)}."
        )
    twice = [name for name in COLUMNS if header.count(name) > 1]
    if twice:
        raise ValueError(f"{path} has the column {twice[0]} more than once.")


def _row(header, values, path, line):
    if len(values) != len(header):
        raise ValueError(
            f"Line {line} of {path} has {len(values)} values for {len(header)} columns; put values that contain the "
            'separator between "quotation marks".'
        )
    row = {name: value.strip() for name, value in zip(header, values, strict=True) if name in COLUMNS}
    blank = [name for name, value in row.items() if not value]
    if blank:
        raise ValueError(f"Line {line} of {path} has no {blank[0]}.")
    # Programs name files, too, and Office begins names with ~$.
    file = os.path.expanduser(row["path"]) if row["path"].startswith("~/") else row["path"]
    file = os.path.abspath(path.parent / file)
    return row | {"path": file, "line": line}


def few(names, most=5):
    """Return the first of some names as a text, and how many more there are."""
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
