"""The storage emulator, with two things that the real service does and it does not.

The header that tells an object's generation: tensorstore compares generations when it reads an object again, and fails
on an object that came without one. And whoever did not hear that an upload is complete may send its end once more.

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


plain_upload, uploaded = objects.upload_partial, {}


def upload_partial(request, response, storage, *args, **kwargs):
    name = request.query["upload_id"][0]
    if name in uploaded:
        response.json(uploaded[name])
        return
    tell = response.json

    def json(told):
        if "name" in told:  # the object, not an error
            uploaded[name] = told
        tell(told)

    response.json = json
    plain_upload(request, response, storage, *args, **kwargs)


objects.upload_partial = upload_partial
objects.download = download  # before the server builds its table of handlers

if __name__ == "__main__":
    from gcp_storage_emulator.__main__ import main

    sys.exit(main())
