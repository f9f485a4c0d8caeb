"""gs:// by gcsfs, with patience: a request that the store fails to answer is made again for minutes.

Everything that reads and writes objects through fsspec or etils.epath comes through here: workdirs, sweeps, Orbax's
listings and metadata, compiled steps. Arrays do not; TensorStore moves them, and tries again by itself.
jmoe/storage/files.py makes this class fsspec's own for gs://.
"""

import asyncio
import re
from urllib.parse import unquote

import gcsfs

from jmoe.storage import files as storage


class Store(gcsfs.GCSFileSystem):
    _request_once = gcsfs.GCSFileSystem._request.__wrapped__  # gcsfs's own tries end after half a minute

    async def _request(self, method, path, *args, **kwargs):
        patience = None
        while True:
            try:
                return await storage.unless_hurried(self._request_once(method, path, *args, **kwargs))
            except FileNotFoundError:
                if method == "DELETE" and patience:  # a try before did it, and its answer was lost
                    return 204, {}, None, b""
                raise
            except Exception as error:  # noqa: BLE001  gcsfs, aiohttp, requests and google.auth raise their own
                if not storage.passes(error) and not isinstance(error, TimeoutError):
                    raise
                patience = patience or storage.Patience(_object_in(path, args))
                await storage.unless_hurried(asyncio.sleep(patience.pause(error)))


def _object_in(path: str, args: tuple) -> str:
    """What a request is about: its bucket and object stand in `args`, or in the address."""
    found = re.search(r"\bb/([^/?]+)(?:/o\?name=([^&]+))?", path)
    names = args[:2] or (found.groups() if found else ())
    return "gs://" + "/".join(unquote(name) for name in names if name)
