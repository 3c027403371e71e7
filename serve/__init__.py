"""The server: an OpenAI-compatible endpoint over the pair, on Ray Serve.

Ray reads its authentication settings when it is first imported, so they are settled here, before any module of this package
imports it: a private Ray, started by ``python -m serve.app``, gets token authentication with a random token that lives in
this process and its children only. Where a cluster or a mode is already named in the environment, or Ray is already imported
(as by ``serve run`` and in a replica), nothing is touched.
"""

import os
import secrets
import sys

if "ray" not in sys.modules and not {"RAY_ADDRESS", "RAY_AUTH_MODE"} & os.environ.keys():
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
