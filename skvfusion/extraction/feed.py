"""Feeding images to a backbone: read ahead by threads, each different one computed once, results put in their rows."""

import logging
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .recipe import Batcher

# While another process computes an image that is needed here too, look for its result this often, in seconds.
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 5.12
# More than anybody has asked for; a picture of one row would be resized to gigabytes.
_MOST_PIXELS = 2**27

_logger = logging.getLogger("skvfusion")


class Feed:
    """One extraction: fills the rows of a sink with the layers of the images.

    Parameters
    ----------
    images : ImageSequence
        The images.
    recipe : Recipe
        What is computed of each.
    layers : list of int
        The layers the sink wants.
    sink : ArraySink or FileSink
        Where the rows go.
    cache : FeatureCache, default=None
        Entered; what it holds is not computed, what is computed is put there, all layers of it.
    batch_size : int
        Images in a forward pass.
    n_threads : int
        Threads that read and decode.
    on_error : {"raise", "nan"}
        What to do about images that cannot be read.
    bar : tqdm, default=None
        Counts finished rows.
    """

    def __init__(self, images, recipe, layers, sink, *, cache=None, batch_size, n_threads, on_error, bar=None):
        self.images = images
        self.recipe = recipe
        self.sink = sink
        self.cache = cache
        self.n_threads = n_threads
        self.on_error = on_error
        self.bar = bar
        every = list(range(recipe.backbone.depth))
        self.batcher = Batcher(recipe, layers if cache is None else every, batch_size)
        self._kept = layers if cache is not None else slice(None)
        self._rows_of = {}  # image digest -> rows that wait for a batch with it
        self._done = {}  # image digest -> a row that holds its result
        self._later = []  # rows of images that another process is computing
        self._running = deque()  # (digests, functions that return their results)
        self._unread = {}  # row -> why its image cannot be read

    def run(self):
        """Fill all rows."""
        rows, wait = range(len(self.images)), _FIRST_WAIT
        while rows:
            self._pass(rows)
            if len(self._later) < len(rows):
                wait = _FIRST_WAIT
            else:
                time.sleep(wait)
                if wait < _LONGEST_WAIT <= 2 * wait:
                    _logger.warning("Waiting for %d images that another process is computing.", len(rows))
                wait = min(2 * wait, _LONGEST_WAIT)
            rows, self._later = sorted(self._later), []
        self.images.warn()
        self._warn_of_unread()

    def _pass(self, rows):
        batch = []
        for row, prepared in self._prepared(rows):
            if isinstance(prepared, ValueError):
                if self.on_error == "raise":
                    self._finish(0)
                    raise prepared
                self._unread[row] = str(prepared)  # the error itself would keep the image
                self._write([row], np.nan)
                continue
            digest, result = prepared
            if digest in self._done:
                self._write([row], self.sink.read(self._done[digest]), digest)
            elif result is None:  # the sink has it
                self._done[digest] = row
                self._count(1)
            elif digest in self._rows_of:
                self._rows_of[digest].append(row)
            elif isinstance(result, np.ndarray):
                self._write([row], result[self._kept], digest)
                self._done[digest] = row
            else:
                self._rows_of[digest] = [row]
                batch.append((digest, result))
                if len(batch) >= self.batcher.batch_size:
                    self._start(batch)
                    batch = []
        if batch:
            self._start(batch)
        self._finish(0)

    def _prepared(self, rows):
        """Yield (row, what :meth:`_prepare` made of its image) in order, with some images read ahead by threads.

        Items are fetched in this thread and in order, because few data sets may be used by several threads.
        """
        ahead = self.batcher.batch_size + 2 * self.n_threads
        pool = ThreadPoolExecutor(self.n_threads, thread_name_prefix="skvfusion-images")
        waiting = deque()
        try:
            for row in rows:
                waiting.append((row, pool.submit(self._prepare, row, self._source(row))))
                if len(waiting) > ahead:
                    yield self._result(waiting)
            while waiting:
                yield self._result(waiting)
        finally:
            pool.shutdown(cancel_futures=True)

    def _source(self, row):
        try:
            return self.images.source(row)
        except ValueError as error:
            return error

    @staticmethod
    def _result(waiting):
        row, future = waiting.popleft()
        return row, future.result()

    def _prepare(self, row, source):
        """Return (digest, its cached result, its pixels, or None if a row has its result), or why it cannot be read."""
        if isinstance(source, ValueError):
            return source
        try:
            digest = source.digest
            if digest in self._done or self.sink.has(row, digest):
                return digest, None
            cached = self._cached(digest)
            if cached is not None:
                return digest, cached
            return digest, self._pixels(source)
        except ValueError as error:
            return error

    def _pixels(self, source):
        backbone = self.recipe.backbone
        image = source.rgb(backbone.shorter_side)
        shorter, longer = sorted(image.size)
        if backbone.shorter_side and backbone.shorter_side**2 * longer / shorter > _MOST_PIXELS:
            raise ValueError(
                f"{source.description} cannot be used: with sides of {shorter} and {longer} pixels it is too narrow to "
                f"be resized to a shorter side of {backbone.shorter_side}. Crop it first."
            )
        return backbone.pixels(image)

    def _cached(self, digest):
        if self.cache is None:
            return None
        stored = self.cache.get(self.recipe.key(digest))
        if stored is None:
            return None
        values = np.frombuffer(stored, np.float32)
        shape = (self.recipe.backbone.depth, len(self.recipe.tokens), self.recipe.backbone.dim)
        return values.reshape(shape) if values.size == np.prod(shape) else None

    def _start(self, batch):
        """Begin to compute the images of a batch, but for those that another process is computing; finish the last."""
        if self.cache is not None:
            keys = {self.recipe.key(digest): digest for digest, _ in batch}
            ours = {keys[key] for key in self.cache.claim(list(keys))}
            for digest, _ in batch:
                if digest not in ours:
                    self._later += self._rows_of.pop(digest)
            batch = [(digest, pixels) for digest, pixels in batch if digest in ours]
        if batch:
            digests, pixels = zip(*batch, strict=True)
            self._running.append((digests, self.batcher.start(list(pixels))))
        # Only a GPU computes while this goes on.
        self._finish(1 if self.recipe.backbone.device.type == "cuda" else 0)

    def _finish(self, still_running):
        """Save the results of batches that were started, until so many are left."""
        while len(self._running) > still_running:
            digests, parts = self._running.popleft()
            values = np.concatenate([wait() for wait in parts])
            results = dict(zip(digests, values, strict=True))
            if self.cache is not None:
                self.cache.put({self.recipe.key(digest): result.tobytes() for digest, result in results.items()})
            for digest, result in results.items():
                rows = self._rows_of.pop(digest)
                self._write(rows, result[self._kept], digest)
                self._done[digest] = rows[0]
            self.sink.flush()

    def _write(self, rows, values, digest=None):
        for row in rows:
            self.sink.write(row, values, digest)
        self._count(len(rows))

    def _count(self, n_rows):
        if self.bar is not None:
            self.bar.update(n_rows)

    def _warn_of_unread(self):
        if self._unread:
            few = "\n".join(f"  {reason}" for _, reason in sorted(self._unread.items())[:5])
            warnings.warn(
                f"{len(self._unread)} of {len(self.images)} images cannot be used; their rows are NaN:\n{few}"
                + ("\n  ..." if len(self._unread) > 5 else ""),
                stacklevel=2,
            )


class ArraySink:
    """Rows in memory: a float32 array of the shape (n_rows, ...)."""

    def __init__(self, shape):
        self.rows = np.empty(shape, np.float32)
        self._flat = self.rows.reshape(len(self.rows), -1)

    def has(self, row, digest):
        """Tell whether a row holds the result of this image already."""
        return False

    def write(self, row, values, digest):
        """Set a row; ``digest`` is that of its image, or None if that cannot be read."""
        self._flat[row] = np.ravel(values)

    def read(self, row):
        """Return the numbers of a row."""
        return self._flat[row]

    def flush(self):
        """Do nothing: memory needs no saving."""
