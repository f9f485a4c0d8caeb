"""The storage emulator, with the header by which the real service tells an object's generation.

tensorstore compares generations when it reads an object again, and fails on an object that came without one.

    python tests/gcs_server.py start --port=PORT --in-memory --default-bucket=NAME
"""

import sys

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

plain_download = objects.download


def download(request, response, storage, *args, **kwargs):
    try:
        found = storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
        response["x-goog-generation"] = found["generation"]
    except NotFound:
        pass
    plain_download(request, response, storage, *args, **kwargs)


objects.download = download  # before the server builds its table of handlers

if __name__ == "__main__":
    from gcp_storage_emulator.__main__ import main

    sys.exit(main())
