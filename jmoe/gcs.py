"""gs:// by gcsfs, with patience: a request that the store fails to answer is made again for minutes.

Everything that reads and writes objects through fsspec or etils.epath comes through here: workdirs, sweeps, Orbax's
listings and metadata, compiled steps. Arrays do not; TensorStore moves them, and tries again by itself. jmoe/storage.py
makes this class fsspec's own for gs://.
"""

import asyncio

import gcsfs

from jmoe import storage


class Store(gcsfs.GCSFileSystem):
    _request_once = gcsfs.GCSFileSystem._request.__wrapped__  # gcsfs's own tries end after half a minute

    async def _request(self, method, path, *args, **kwargs):
        patience = None
        while True:
            try:
                return await self._request_once(method, path, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  gcsfs, aiohttp, requests and google.auth raise their own
                if not storage.passes(error):
                    raise
                patience = patience or storage.Patience("gs://" + "/".join(args[:2]))
                await asyncio.sleep(patience.pause(error))
