"""The jobs: sweeps, corpus making, drafter training.

Ray reads its authentication settings when it is first imported, so they are settled here, before any job imports it: a
private Ray, started by a job for itself, gets token authentication with a random token that lives in this process and its
children only. Where a cluster or a mode is already named in the environment, nothing is touched.
"""

import os
import secrets

if not {"RAY_ADDRESS", "RAY_AUTH_MODE"} & os.environ.keys():
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
